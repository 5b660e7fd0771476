package refold.rebuild;

import java.util.ArrayDeque;
import java.util.Deque;
import java.util.List;

/** The last elements in the order Q, in which assertions have to come. */
final class AppendCell implements Cell {
  private final Deque<Held> elements = new ArrayDeque<>();
  private final int limit;

  AppendCell(int limit) {
    this.limit = limit;
  }

  static AppendCell unpack(Object packed, OrderKeys keys, int limit) {
    AppendCell found = new AppendCell(limit);
    for (Object each : Tree.list(packed)) {
      List<Object> parts = Tree.list(each);
      found.elements.add(new Held(parts.get(0), 0, keys.at(parts.get(1))));
    }
    return found;
  }

  @Override
  public void add(Held assertion) {
    for (Object each : Tree.list(assertion.value())) {
      elements.addLast(new Held(each, assertion.priority(), assertion.q()));
      if (elements.size() > limit) {
        elements.removeFirst();
      }
    }
  }

  @Override
  public boolean isPresent() {
    return !elements.isEmpty();
  }

  @Override
  public Object value() {
    return elements.stream().map(Held::value).toList();
  }

  @Override
  public Object by() {
    return elements.stream().map(Held::id).toList();
  }
}
