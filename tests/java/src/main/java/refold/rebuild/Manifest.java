package refold.rebuild;

import java.util.List;
import java.util.Map;

/** "Manifest" of docs/FORMAT.md, as far as a rebuild goes by it. */
record Manifest(
    Bytes log,
    int foldVersion,
    int partition,
    long offset,
    long schemas,
    List<Span> ranges,
    List<Span> index,
    List<Cold> cold,
    long entities,
    Bytes slots,
    Bytes root,
    Map<String, Object> types) {
  private static final int FORMAT = 3;

  /** A span of closed entities of a type. */
  record Cold(String type, Span span) {
    private static Cold of(Object tree) {
      List<Object> parts = Tree.list(tree);
      return new Cold(Tree.text(parts.get(0)), Span.of(parts.get(2)));
    }
  }

  static Manifest read(Bytes sealed) {
    Map<String, Object> tree = Tree.map(Cbor.decode(Digests.checked(sealed)));
    if (Tree.small(tree.get("format")) != FORMAT) {
      throw new DamagedException("a manifest of format " + tree.get("format"));
    }
    List<Object> epoch = Tree.list(tree.get("epoch"));
    return new Manifest(
        Tree.bytes(tree.get("log")),
        Tree.small(tree.get("fold")),
        Tree.small(epoch.get(0)),
        Tree.number(epoch.get(1)),
        Tree.number(epoch.get(2)),
        Tree.list(tree.get("ranges")).stream().map(Span::of).toList(),
        Tree.list(tree.get("index")).stream().map(Span::of).toList(),
        Tree.list(tree.get("cold")).stream().map(Cold::of).toList(),
        Tree.number(tree.get("entities")),
        Tree.bytes(tree.get("slots")),
        Tree.bytes(tree.get("root")),
        Tree.map(tree.get("types")));
  }
}
