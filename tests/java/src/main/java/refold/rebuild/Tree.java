package refold.rebuild;

import java.math.BigInteger;
import java.util.List;
import java.util.Map;

/** What stands at a place of a decoded tree, as the type it has to be. */
final class Tree {
  private Tree() {}

  @SuppressWarnings("unchecked")
  static List<Object> list(Object tree) {
    return (List<Object>) as(List.class, tree);
  }

  /** A map whose keys are texts. */
  @SuppressWarnings("unchecked")
  static Map<String, Object> map(Object tree) {
    return (Map<String, Object>) as(Map.class, tree);
  }

  /** A map whose keys are of any type. */
  @SuppressWarnings("unchecked")
  static Map<Object, Object> anyMap(Object tree) {
    return (Map<Object, Object>) as(Map.class, tree);
  }

  static String text(Object tree) {
    return as(String.class, tree);
  }

  static Bytes bytes(Object tree) {
    return as(Bytes.class, tree);
  }

  static long number(Object tree) {
    return as(BigInteger.class, tree).longValueExact();
  }

  static int small(Object tree) {
    return as(BigInteger.class, tree).intValueExact();
  }

  private static <T> T as(Class<T> type, Object tree) {
    if (!type.isInstance(tree)) {
      throw new DamagedException("there is no " + type.getSimpleName() + ": " + tree);
    }
    return type.cast(tree);
  }
}
