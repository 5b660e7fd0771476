package refold.rebuild;

import java.util.Base64;
import java.util.Map;
import java.util.SortedMap;
import java.util.TreeMap;

/** "Cuts" of docs/FORMAT.md. observedUntil: microseconds, or null. */
record Cut(
    Bytes log, SortedMap<Integer, Long> offsets, long schemas, Bytes types, Long observedUntil, int foldVersion) {
  private static final String PREFIX = "cut:1.";

  static Cut parse(String text) {
    if (!text.startsWith(PREFIX)) {
      throw new RefusedException("no cut: " + text);
    }
    Bytes encoded = new Bytes(Base64.getUrlDecoder().decode(text.substring(PREFIX.length())));
    Map<String, Object> tree = Tree.map(Cbor.decode(encoded));
    SortedMap<Integer, Long> offsets = new TreeMap<>();
    Tree.anyMap(tree.get("p")).forEach((key, offset) -> offsets.put(Tree.small(key), Tree.number(offset)));
    return new Cut(
        Tree.bytes(tree.get("l")),
        offsets,
        Tree.number(tree.get("s")),
        Tree.bytes(tree.get("t")),
        tree.containsKey("o") ? Tree.number(tree.get("o")) : null,
        Tree.small(tree.get("v")));
  }
}
