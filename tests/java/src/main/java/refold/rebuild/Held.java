package refold.rebuild;

import java.util.Comparator;
import java.util.List;

/** A value, and the priority and Q of the observation that holds it. */
record Held(Object value, int priority, Bytes q) {
  private static final int ID_SIZE = 32;
  private static final Comparator<Held> BY_Q = Comparator.comparing(Held::q);
  private static final Comparator<Held> BY_VALUE = (one, other) -> Numbers.compare(one.value, other.value);

  static final Comparator<Held> LATEST = Comparator.comparingInt(Held::priority).thenComparing(BY_Q);
  static final Comparator<Held> FIRST = Comparator.comparingInt(Held::priority).thenComparing(BY_Q.reversed());
  static final Comparator<Held> LEAST = BY_VALUE.reversed().thenComparing(BY_Q.reversed());
  static final Comparator<Held> GREATEST = BY_VALUE.thenComparing(BY_Q.reversed());

  static Held unpack(Object packed, OrderKeys keys) {
    List<Object> parts = Tree.list(packed);
    return new Held(parts.get(0), Tree.small(parts.get(1)), keys.at(parts.get(2)));
  }

  Bytes id() {
    return q.last(ID_SIZE);
  }

  /** The one of two that wins, of which the first may be null. */
  static Held winner(Comparator<Held> order, Held one, Held other) {
    return one == null || order.compare(other, one) > 0 ? other : one;
  }
}
