package refold.rebuild;

import java.util.List;

/** Records of `.snapshots`, and the SHA-256 over them; the end is the next offset. */
record Span(long start, long end, Bytes digest) {
  static Span of(Object tree) {
    List<Object> parts = Tree.list(tree);
    return new Span(Tree.number(parts.get(0)), Tree.number(parts.get(1)), Tree.bytes(parts.get(2)));
  }
}
