package refold.rebuild;

import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.Map;
import java.util.NavigableMap;
import java.util.TreeMap;
import java.util.zip.CRC32C;
import org.apache.kafka.common.utils.Utils;

/** "Keys, slots and roots" of docs/FORMAT.md. */
final class Digests {
  static final int SLOTS = 1024;
  static final int SIZE = 32;
  private static final int CRC_SIZE = 4;
  private static final Bytes NONE = new Bytes(new byte[SIZE]);

  private Digests() {}

  static MessageDigest sha256() {
    try {
      return MessageDigest.getInstance("SHA-256");
    } catch (NoSuchAlgorithmException error) {
      throw new AssertionError(error);
    }
  }

  static Bytes sha256(Bytes... parts) {
    MessageDigest running = sha256();
    for (Bytes part : parts) {
      running.update(part.array());
    }
    return new Bytes(running.digest());
  }

  /** A record without the CRC-32C at its end, which has to match. */
  static Bytes checked(Bytes sealed) {
    int end = sealed.size() - CRC_SIZE;
    if (end < 0) {
      throw new DamagedException("no room for a CRC-32C");
    }
    CRC32C found = new CRC32C();
    found.update(sealed.array(), 0, end);
    if ((int) found.getValue() != ByteBuffer.wrap(sealed.array()).getInt(end)) {
      throw new DamagedException("its CRC-32C does not match");
    }
    return sealed.slice(0, end);
  }

  static int slot(Bytes key) {
    return (Utils.murmur2(key.array()) & 0x7fffffff) % SLOTS;
  }

  private static int bucket(Bytes key) {
    return sha256(key).array()[0] & 0xff;
  }

  /** The digests of all slots that have entities, from the state hashes by key. */
  static NavigableMap<Integer, Bytes> slots(NavigableMap<Bytes, Bytes> hashes) {
    NavigableMap<Integer, NavigableMap<Integer, MessageDigest>> open = new TreeMap<>();
    hashes.forEach((key, hash) -> {
      MessageDigest bucket = open.computeIfAbsent(slot(key), slot -> new TreeMap<>())
          .computeIfAbsent(bucket(key), number -> sha256());
      bucket.update(ByteBuffer.allocate(4).putInt(key.size()).array());
      bucket.update(key.array());
      bucket.update(hash.array());
    });
    NavigableMap<Integer, Bytes> found = new TreeMap<>();
    open.forEach((slot, buckets) -> {
      MessageDigest whole = sha256();
      for (int number = 0; number < 256; number++) {
        whole.update(buckets.containsKey(number) ? buckets.get(number).digest() : NONE.array());
      }
      found.put(slot, new Bytes(whole.digest()));
    });
    return found;
  }

  static Bytes slotOf(Map<Integer, Bytes> slots, int slot) {
    return slots.getOrDefault(slot, NONE);
  }

  static Bytes root(long entities, Map<Integer, Bytes> slots) {
    MessageDigest running = sha256();
    running.update(Bytes.of("refold-root/1").array());
    running.update(ByteBuffer.allocate(8).putLong(entities).array());
    for (int slot = 0; slot < SLOTS; slot++) {
      running.update(slotOf(slots, slot).array());
    }
    return new Bytes(running.digest());
  }
}
