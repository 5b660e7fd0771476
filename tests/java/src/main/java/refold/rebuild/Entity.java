package refold.rebuild;

import java.math.BigInteger;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** "The fold" of one entity, and the "Encoded entity" of docs/FORMAT.md. */
final class Entity {
  private static final int FORMAT = 4;
  private static final int ID_SIZE = 32;
  private static final int SEQ_SIZE = 8;
  private static final int TIME_SIZE = 8;

  private final String name;
  private final Definition definition;
  private final Map<String, Cell> cells = new HashMap<>();
  private final Map<String, Bytes> clears = new HashMap<>();
  private final Map<Bytes, Bytes> sources = new HashMap<>();
  private final Set<Object> known = new HashSet<>();
  private Links links = new Links();
  private long version;
  private Bytes greatest = Bytes.EMPTY;
  private Bytes floor = Bytes.EMPTY;

  /** Ids that are retracted and have not come; null where they are too many to be held. */
  private Set<Object> awaited = new HashSet<>();

  Entity(String name, Definition definition) {
    this.name = name;
    this.definition = definition;
  }

  static Entity unpack(String name, Definition definition, Bytes encoded) {
    List<Object> parts = Tree.list(MessagePack.decode(encoded));
    if (Tree.small(parts.get(0)) != FORMAT) {
      throw new DamagedException(name + " has the format " + parts.get(0));
    }
    Entity found = new Entity(name, definition);
    found.version = Tree.number(parts.get(1));
    OrderKeys keys = new OrderKeys(Tree.list(parts.get(4)));
    Tree.map(parts.get(5)).forEach((field, cell) ->
        found.cells.put(field, Cell.unpack(definition.fields().get(field), cell, keys)));
    found.links = Links.unpack(parts.get(6), keys);
    Tree.map(parts.get(7)).forEach((field, number) -> found.clears.put(field, keys.at(number)));
    found.greatest = keys.atOrEmpty(parts.get(8));
    for (Object number : Tree.list(parts.get(9))) {
      Bytes q = keys.at(number);
      found.sources.put(q.slice(TIME_SIZE, q.size() - SEQ_SIZE - ID_SIZE), q);
    }
    found.floor = keys.atOrEmpty(parts.get(10));
    for (Object each : Tree.list(parts.get(11))) {
      found.known.add(each instanceof Bytes ? each : keys.at(each).last(ID_SIZE));
    }
    found.awaited = parts.get(12) == null ? null : new HashSet<>(Tree.list(parts.get(12)));
    return found;
  }

  /** The fold of distinct observations in the log's order; observedUntil: see docs/FORMAT.md, or null. */
  static Entity fromNothing(String name, Definition definition, List<Observation> all, Long observedUntil) {
    Set<Object> retracted = new HashSet<>();
    all.forEach(each -> retracted.addAll(each.retracts()));
    List<Observation> live =
        all.stream()
            .filter(each -> !retracted.contains(each.id()))
            .filter(each -> observedUntil == null || each.observedAt() <= observedUntil)
            .sorted((one, other) -> one.q().compareTo(other.q()))
            .toList();
    Entity found = new Entity(name, definition);
    live.forEach(each -> each.cleared().forEach(field -> found.clears.put(Tree.text(field), each.q())));
    live.forEach(found::fold);
    found.version = observedUntil == null ? all.size() : live.size();
    return found;
  }

  /** Whether an observation is surely among those that were folded. */
  boolean isKnown(Observation observation) {
    return known.contains(observation.id());
  }

  /** Fold one more observation if that can be done without those before it. */
  boolean foldDirectly(Observation observation) {
    Bytes q = observation.q();
    if (!isNew(observation) || !observation.retracts().isEmpty() || awaited == null) {
      return false;
    }
    if (!awaited.remove(observation.id())) {
      boolean isLate = q.compareTo(greatest) < 0;
      if (isLate && (!observation.cleared().isEmpty() || assertsInOrder(observation))) {
        return false;
      }
      for (Object field : observation.cleared()) {
        cells.remove(Tree.text(field));
        clears.put(Tree.text(field), q);
      }
      fold(observation);
    }
    version++;
    known.add(observation.id());
    greatest = later(greatest, q);
    sources.merge(observation.source(), q, Entity::later);
    return true;
  }

  private boolean isNew(Observation observation) {
    Bytes q = observation.q();
    Bytes held = sources.get(observation.source());
    return q.compareTo(greatest) > 0 || q.compareTo(floor) > 0 && (held == null || q.compareTo(held) > 0);
  }

  private boolean assertsInOrder(Observation observation) {
    return observation.patch().keySet().stream()
        .map(definition.fields()::get)
        .anyMatch(field -> field != null && Set.of("append", "custom").contains(field.reducer()));
  }

  private static Bytes later(Bytes one, Bytes other) {
    return one.compareTo(other) < 0 ? other : one;
  }

  private void fold(Observation observation) {
    if (observation.link() != null) {
      links.add(observation);
    }
    observation.patch().forEach((name, value) -> {
      Field field = definition.fields().get(name);
      Bytes cleared = clears.getOrDefault(name, Bytes.EMPTY);
      if (field != null && observation.q().compareTo(cleared) >= 0) {
        cells.computeIfAbsent(name, absent -> Cell.empty(field))
            .add(new Held(value, observation.priority(), observation.q()));
      }
    });
  }

  long version() {
    return version;
  }

  /** "State and its hash" of docs/FORMAT.md. */
  Bytes stateHash() {
    Map<String, Object> fields = new HashMap<>();
    Map<String, Object> by = new HashMap<>();
    cells.forEach((field, cell) -> {
      if (cell.isPresent()) {
        fields.put(field, cell.value());
        by.put(field, cell.by());
      }
    });
    Map<String, Object> state =
        Map.of(
            "format", BigInteger.ONE,
            "entity", name,
            "version", BigInteger.valueOf(version),
            "fields", fields,
            "by", by,
            "links", links.tree());
    return Digests.sha256(Cbor.encode(state));
  }
}
