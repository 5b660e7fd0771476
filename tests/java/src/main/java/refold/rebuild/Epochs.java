package refold.rebuild;

import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.NavigableMap;
import java.util.TreeMap;
import java.util.function.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;

/** "Snapshots" of docs/FORMAT.md: the epochs of one partition. */
final class Epochs {
  private static final Bytes PREFIX = Bytes.of("epoch/");
  private static final int KEY_SIZE = PREFIX.size() + 2 + 8 + 8;

  private final Log log;
  private final int partition;
  private final Map<Bytes, Bytes> manifests = new HashMap<>();

  Epochs(Log log, int partition) {
    this.log = log;
    this.partition = partition;
    for (ConsumerRecord<byte[], byte[]> each : log.read("manifests", partition)) {
      Bytes key = new Bytes(each.key());
      if (key.size() == KEY_SIZE && key.slice(0, PREFIX.size()).equals(PREFIX)) {
        manifests.put(key, each.value() == null ? Bytes.EMPTY : new Bytes(each.value()));
      }
    }
    manifests.values().removeIf(Bytes.EMPTY::equals);
  }

  /** The keys of those from which a cut can begin, the nearest first. */
  List<Bytes> below(long offset, long schemas) {
    List<Bytes> found = new ArrayList<>(manifests.keySet());
    found.removeIf(key -> offsetOf(key) > offset);
    found.sort(
        Comparator.comparingLong(Epochs::offsetOf)
            .thenComparing(key -> schemasOf(key) <= schemas)
            .thenComparingLong(Epochs::schemasOf)
            .reversed());
    return found;
  }

  static long offsetOf(Bytes key) {
    return ByteBuffer.wrap(key.array()).getLong(PREFIX.size() + 2);
  }

  private static long schemasOf(Bytes key) {
    return ByteBuffer.wrap(key.array()).getLong(PREFIX.size() + 10);
  }

  Manifest manifest(Bytes key) {
    Manifest found = Manifest.read(manifests.get(key));
    if (found.partition() != partition || found.offset() != offsetOf(key) || found.schemas() != schemasOf(key)) {
      throw new DamagedException("the manifest is of another epoch");
    }
    return found;
  }

  /** An epoch's entities by key, checked against its manifest. */
  NavigableMap<Bytes, Chunk.Member> read(Manifest manifest) {
    NavigableMap<Bytes, Chunk.Member> found = new TreeMap<>();
    for (List<Span> spans : List.of(manifest.index(), manifest.ranges())) {
      spans.forEach(span -> read(span, member -> found.put(member.key(), member)));
    }
    check(manifest, found);
    return found;
  }

  /** The encoded form of an entity that stands in the index alone. */
  Bytes closed(Manifest manifest, Chunk.Member indexed) {
    String name = indexed.key().text();
    List<Bytes> found = new ArrayList<>();
    for (Manifest.Cold each : manifest.cold()) {
      if (name.startsWith(each.type() + "/")) {
        read(each.span(), member -> {
          if (member.key().equals(indexed.key()) && member.stateHash().equals(indexed.stateHash())) {
            found.add(member.encoded());
          }
        });
      }
    }
    if (found.isEmpty()) {
      throw new DamagedException("the closed entity " + name + " is gone");
    }
    return found.get(0);
  }

  private void read(Span span, Consumer<Chunk.Member> take) {
    MessageDigest running = Digests.sha256();
    long offset = span.start();
    for (ConsumerRecord<byte[], byte[]> each : log.read("snapshots", partition, span.start(), span.end())) {
      Bytes key = new Bytes(ByteBuffer.allocate(8).putLong(offset).array());
      if (each.offset() != offset || !key.equals(new Bytes(each.key()))) {
        throw new DamagedException("the snapshot record " + offset + " is gone");
      }
      running.update(each.value());
      Chunk.read(new Bytes(each.value())).forEach(take);
      offset++;
    }
    if (offset != span.end() || !new Bytes(running.digest()).equals(span.digest())) {
      throw new DamagedException("the snapshot records " + span.start() + " to " + span.end() + " do not match");
    }
  }

  private void check(Manifest manifest, NavigableMap<Bytes, Chunk.Member> members) {
    NavigableMap<Bytes, Bytes> hashes = new TreeMap<>();
    members.forEach((key, member) -> hashes.put(key, member.stateHash()));
    NavigableMap<Integer, Bytes> slots = Digests.slots(hashes);
    int at = 0;
    for (int slot = partition; slot < Digests.SLOTS; slot += log.partitions()) {
      if (!manifest.slots().slice(at, at + Digests.SIZE).equals(Digests.slotOf(slots, slot))) {
        throw new DamagedException("slot " + slot + " does not match the manifest");
      }
      at += Digests.SIZE;
    }
    if (at != manifest.slots().size() || members.size() != manifest.entities()) {
      throw new DamagedException("there are not as many entities or slots as the manifest says");
    }
    if (!Digests.root(members.size(), slots).equals(manifest.root())) {
      throw new DamagedException("the root does not match the manifest");
    }
  }
}
