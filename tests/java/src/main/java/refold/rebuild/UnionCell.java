package refold.rebuild;

import java.util.List;
import java.util.SortedMap;
import java.util.TreeMap;

/** A set in the order of its elements' CBOR, each held by the least Q that has it. */
final class UnionCell implements Cell {
  private final SortedMap<Bytes, Held> elements = new TreeMap<>();

  static UnionCell unpack(Object packed, OrderKeys keys) {
    UnionCell found = new UnionCell();
    Tree.anyMap(packed).forEach((key, value) -> {
      List<Object> parts = Tree.list(value);
      found.elements.put(Tree.bytes(key), new Held(parts.get(0), 0, keys.at(parts.get(1))));
    });
    return found;
  }

  @Override
  public void add(Held assertion) {
    for (Object each : Tree.list(assertion.value())) {
      Held held = new Held(each, assertion.priority(), assertion.q());
      elements.merge(Cbor.encode(each), held, (one, other) -> other.q().compareTo(one.q()) < 0 ? other : one);
    }
  }

  @Override
  public boolean isPresent() {
    return !elements.isEmpty();
  }

  @Override
  public Object value() {
    return elements.values().stream().map(Held::value).toList();
  }

  @Override
  public Object by() {
    return elements.values().stream().map(Held::id).toList();
  }
}
