package refold.rebuild;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.SortedMap;
import java.util.TreeMap;

/** An entity's links: of each (relation, target) the latest link or unlink. */
final class Links {
  /** By the CBOR of [relation, target]; the value is what the state shows of it, null for an unlink. */
  private final SortedMap<Bytes, Held> winners = new TreeMap<>();

  static Links unpack(Object packed, OrderKeys keys) {
    Links found = new Links();
    for (Object each : Tree.list(packed)) {
      List<Object> parts = Tree.list(each);
      Map<String, Object> link = new HashMap<>();
      List<String> names = List.of("relation", "target", "", "valid_from", "valid_to");
      for (int at : new int[] {0, 1, 3, 4}) {
        if (parts.get(at) != null) {
          link.put(names.get(at), parts.get(at));
        }
      }
      found.put(link, Boolean.TRUE.equals(parts.get(2)), Tree.small(parts.get(5)), keys.at(parts.get(6)));
    }
    return found;
  }

  void add(Observation observation) {
    put(observation.link(), observation.isLink(), observation.priority(), observation.q());
  }

  private void put(Map<String, Object> link, boolean isLink, int priority, Bytes q) {
    Bytes key = Cbor.encode(List.of(link.get("relation"), link.get("target")));
    Held held = new Held(isLink ? link : null, priority, q);
    winners.merge(key, held, (one, other) -> Held.winner(Held.LATEST, one, other));
  }

  /** The state's `links`. */
  List<Object> tree() {
    List<Object> found = new ArrayList<>();
    for (Held held : winners.values()) {
      if (held.value() != null) {
        Map<String, Object> link = new HashMap<>(Tree.map(held.value()));
        link.put("by", held.id());
        found.add(link);
      }
    }
    return found;
  }
}
