package refold.rebuild;

import java.util.List;

/** The order keys of an encoded entity, to which its other parts refer by number. */
record OrderKeys(List<Object> keys) {
  Bytes at(Object number) {
    int place = Tree.small(number);
    if (place < 0 || place >= keys.size()) {
      throw new DamagedException("there is no order key " + place);
    }
    return Tree.bytes(keys.get(place));
  }

  /** The key of a number, or an empty one for nil. */
  Bytes atOrEmpty(Object number) {
    return number == null ? Bytes.EMPTY : at(number);
  }
}
