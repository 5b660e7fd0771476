package refold.rebuild;

import java.util.HashMap;
import java.util.Map;
import java.util.function.Function;

/** The latest of each key; a null takes the key out. */
final class MapCell implements Cell {
  private final Map<String, Held> entries = new HashMap<>();

  static MapCell unpack(Object packed, OrderKeys keys) {
    MapCell found = new MapCell();
    Tree.map(packed).forEach((key, value) -> found.entries.put(key, Held.unpack(value, keys)));
    return found;
  }

  @Override
  public void add(Held assertion) {
    Tree.map(assertion.value()).forEach((key, value) -> {
      Held held = new Held(value, assertion.priority(), assertion.q());
      entries.merge(key, held, (one, other) -> Held.winner(Held.LATEST, one, other));
    });
  }

  @Override
  public boolean isPresent() {
    return entries.values().stream().anyMatch(each -> each.value() != null);
  }

  @Override
  public Object value() {
    return live(Held::value);
  }

  @Override
  public Object by() {
    return live(Held::id);
  }

  private Map<String, Object> live(Function<Held, Object> part) {
    Map<String, Object> found = new HashMap<>();
    entries.forEach((key, held) -> {
      if (held.value() != null) {
        found.put(key, part.apply(held));
      }
    });
    return found;
  }
}
