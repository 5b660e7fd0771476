package refold.rebuild;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.List;

/** "Chunk" of docs/FORMAT.md. */
final class Chunk {
  private static final int FORMAT = 1;

  /** encoded: empty in an index. */
  record Member(Bytes key, Bytes stateHash, Bytes encoded) {}

  private Chunk() {}

  /** Its entities; that each stands at its key's slot and bucket shows where the slots are hashed. */
  static List<Member> read(Bytes sealed) {
    Bytes chunk = Digests.checked(sealed);
    ByteBuffer in = ByteBuffer.wrap(chunk.array());
    int format = in.get();
    if (format != FORMAT) {
      throw new DamagedException("a chunk of format " + format);
    }
    int groups = in.getInt();
    int entities = in.getInt();
    int preimages = in.getInt();
    in.position(in.position() + 3 * 4 * groups);
    ByteBuffer ends = in.slice().order(ByteOrder.LITTLE_ENDIAN);
    in.position(in.position() + 4 * entities);
    int bodies = in.position() + preimages;
    int start = 0;
    List<Member> found = new ArrayList<>();
    for (int number = 0; number < entities; number++) {
      Bytes key = take(in, in.getInt());
      Bytes hash = take(in, Digests.SIZE);
      int end = ends.getInt();
      found.add(new Member(key, hash, chunk.slice(bodies + start, bodies + end)));
      start = end;
    }
    if (in.position() != bodies || bodies + start != chunk.size()) {
      throw new DamagedException("the lengths in a chunk do not add up");
    }
    return found;
  }

  private static Bytes take(ByteBuffer in, int size) {
    byte[] found = new byte[size];
    in.get(found);
    return new Bytes(found);
  }
}
