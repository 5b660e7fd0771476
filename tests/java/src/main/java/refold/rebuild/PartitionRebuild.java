package refold.rebuild;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.NavigableMap;
import java.util.Set;
import java.util.TreeMap;
import org.apache.kafka.clients.consumer.ConsumerRecord;

/** "Rebuilding a cut" of docs/FORMAT.md, of one partition, in its steps. */
final class PartitionRebuild {
  private final Log log;
  private final int partition;
  private final Cut cut;
  private final Definitions definitions;
  private final Set<Long> verdicts = new HashSet<>();

  /** What the epoch has, by key. */
  private NavigableMap<Bytes, Chunk.Member> sealed = new TreeMap<>();

  /** What was folded since, and what was set aside to be folded from nothing, by key. */
  private final Map<Bytes, Entity> folded = new HashMap<>();
  private final Set<Bytes> aside = new HashSet<>();

  private final Epochs epochs;
  private Manifest manifest;
  private long direct;
  private final List<String> fallbacks = new ArrayList<>();
  private final NavigableMap<Bytes, Bytes> hashes = new TreeMap<>();

  PartitionRebuild(Log log, int partition, Cut cut, Definitions definitions) {
    this.log = log;
    this.partition = partition;
    this.cut = cut;
    this.definitions = definitions;
    epochs = new Epochs(log, partition);
    for (ConsumerRecord<byte[], byte[]> each : log.read("deadletters", partition)) {
      verdicts.add(ByteBuffer.wrap(each.key()).getLong());
    }
  }

  void run() {
    long end = cut.offsets().get(partition);
    long start = cut.observedUntil() == null ? begin(end) : 0;
    for (ConsumerRecord<byte[], byte[]> each : log.read("observations", partition, start, end)) {
      foldDirectly(each);
    }
    foldFromNothing(end);
    finish();
  }

  /** Steps 1 and 2: begin from the nearest epoch that is whole. Returns the offset up to which it goes. */
  private long begin(long end) {
    for (Bytes key : epochs.below(end, cut.schemas())) {
      try {
        Manifest found = epochs.manifest(key);
        if (!found.log().equals(cut.log()) || found.foldVersion() != cut.foldVersion()) {
          throw new DamagedException("the manifest is of another log or fold version");
        }
        sealed = epochs.read(found);
        setAside(found);
        manifest = found;
        return found.offset();
      } catch (DamagedException error) {
        sealed = new TreeMap<>();
        aside.clear();
        fallbacks.add(partition + "=" + Epochs.offsetOf(key) + ": " + error.getMessage());
      }
    }
    return 0;
  }

  /** Sets entities aside whose type folds otherwise by now; the encoded form of all others gives their hash. */
  private void setAside(Manifest found) {
    for (Chunk.Member each : sealed.values()) {
      Definition definition = definitions.of(each.key().text());
      if (!definition.fingerprint().equals(found.types().get(definition.name()))) {
        aside.add(each.key());
      } else if (each.encoded().size() > 0) {
        unpack(each, each.encoded());
      }
    }
  }

  private Entity unpack(Chunk.Member member, Bytes encoded) {
    String name = member.key().text();
    Entity found = Entity.unpack(name, definitions.of(name), encoded);
    if (!found.stateHash().equals(member.stateHash())) {
      throw new DamagedException(name + " does not hash to its state hash");
    }
    return found;
  }

  /** Steps 3 and 4: fold a record directly, or set its entity aside. */
  private void foldDirectly(ConsumerRecord<byte[], byte[]> record) {
    if (verdicts.contains(record.offset())) {
      return;
    }
    Observation observation = observation(record);
    Bytes key = new Bytes(record.key());
    if (aside.contains(key)) {
      return;
    }
    if (cut.observedUntil() != null) {
      aside.add(key);
      return;
    }
    Entity entity = folded.computeIfAbsent(key, this::begun);
    if (entity != null && entity.isKnown(observation)) {
      return;
    }
    if (entity != null && entity.foldDirectly(observation)) {
      direct++;
    } else {
      folded.remove(key);
      aside.add(key);
    }
  }

  /** The entity as the epoch has it; null for a closed one that is damaged. */
  private Entity begun(Bytes key) {
    Chunk.Member member = sealed.get(key);
    if (member == null) {
      return new Entity(key.text(), definitions.of(key.text()));
    }
    try {
      return unpack(member, member.encoded().size() > 0 ? member.encoded() : epochs.closed(manifest, member));
    } catch (DamagedException error) {
      fallbacks.add(error.getMessage());
      return null;
    }
  }

  /** Step 5. */
  private void foldFromNothing(long end) {
    if (aside.isEmpty()) {
      return;
    }
    Map<Bytes, Map<Bytes, Observation>> found = new TreeMap<>();
    for (ConsumerRecord<byte[], byte[]> each : log.read("observations", partition, 0, end)) {
      if (!verdicts.contains(each.offset()) && aside.contains(new Bytes(each.key()))) {
        Observation observation = observation(each);
        found.computeIfAbsent(new Bytes(each.key()), absent -> new LinkedHashMap<>())
            .putIfAbsent(observation.id(), observation);
      }
    }
    found.forEach((key, all) -> {
      String name = key.text();
      List<Observation> distinct = List.copyOf(all.values());
      folded.put(key, Entity.fromNothing(name, definitions.of(name), distinct, cut.observedUntil()));
    });
  }

  /** Step 6. */
  private void finish() {
    sealed.forEach((key, member) -> hashes.put(key, member.stateHash()));
    folded.forEach((key, entity) -> {
      if (entity.version() > 0) {
        hashes.put(key, entity.stateHash());
      }
    });
  }

  /** What a record without a verdict says; where it says nothing a worker has not come to it yet. */
  private Observation observation(ConsumerRecord<byte[], byte[]> record) {
    Bytes key = record.key() == null ? Bytes.EMPTY : new Bytes(record.key());
    Observation found = record.value() == null ? null : Observation.read(definitions, new Bytes(record.value()));
    Bytes id = Log.header(record, "refold-id");
    if (found == null
        || !Bytes.of(found.entity()).equals(key)
        || log.partitionOf(key) != partition
        || id != null && !id.equals(found.id())) {
      throw new RefusedException("the record " + partition + "=" + record.offset() + " is not decided yet");
    }
    return found;
  }

  NavigableMap<Bytes, Bytes> hashes() {
    return hashes;
  }

  /** The next offset of the epoch it began from, or null. */
  Long epoch() {
    return manifest == null ? null : manifest.offset();
  }

  long direct() {
    return direct;
  }

  long reopened() {
    return aside.size();
  }

  List<String> fallbacks() {
    return fallbacks;
  }
}
