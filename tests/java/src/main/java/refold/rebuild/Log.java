package refold.rebuild;

import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** "On Kafka" of docs/FORMAT.md: a log's topics, read by a consumer that belongs to no group. */
final class Log implements AutoCloseable {
  private static final Duration PATIENCE = Duration.ofSeconds(60);

  private final String prefix;
  private final KafkaConsumer<byte[], byte[]> consumer;
  private final Bytes id;
  private final int partitions;

  Log(String bootstrap, String prefix) throws ExecutionException, InterruptedException {
    this.prefix = prefix;
    try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
      String topic = prefix + ".observations";
      TopicDescription found = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
      Uuid uuid = found.topicId();
      ByteBuffer raw = ByteBuffer.allocate(16);
      raw.putLong(uuid.getMostSignificantBits()).putLong(uuid.getLeastSignificantBits());
      id = new Bytes(raw.array());
      partitions = found.partitions().size();
    }
    Map<String, Object> settings =
        Map.of(
            "bootstrap.servers", bootstrap,
            "isolation.level", "read_committed",
            "enable.auto.commit", false,
            "fetch.max.wait.ms", 10,
            "auto.offset.reset", "none");
    consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
  }

  Bytes id() {
    return id;
  }

  int partitions() {
    return partitions;
  }

  int partitionOf(Bytes key) {
    return Digests.slot(key) % partitions;
  }

  /** All records of a topic's partition, to its last stable offset. */
  List<ConsumerRecord<byte[], byte[]>> read(String topic, int partition) {
    TopicPartition place = place(topic, partition);
    return read(place, consumer.beginningOffsets(List.of(place)).get(place), stableEnd(place));
  }

  /** The records from an offset to before another; some offsets hold none. */
  List<ConsumerRecord<byte[], byte[]>> read(String topic, int partition, long start, long end) {
    TopicPartition place = place(topic, partition);
    if (end > stableEnd(place)) {
      throw new RefusedException(place + " does not reach to " + end);
    }
    return read(place, start, end);
  }

  private List<ConsumerRecord<byte[], byte[]>> read(TopicPartition place, long start, long end) {
    List<ConsumerRecord<byte[], byte[]>> found = new ArrayList<>();
    consumer.assign(List.of(place));
    consumer.seek(place, start);
    long deadline = System.nanoTime() + PATIENCE.toNanos();
    while (consumer.position(place) < end) {
      if (System.nanoTime() > deadline) {
        throw new IllegalStateException(place + " cannot be read past " + consumer.position(place));
      }
      for (ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofMillis(200))) {
        if (each.offset() < end) {
          found.add(each);
        }
      }
    }
    return found;
  }

  private long stableEnd(TopicPartition place) {
    return consumer.endOffsets(List.of(place)).get(place);
  }

  private TopicPartition place(String topic, int partition) {
    return new TopicPartition(prefix + "." + topic, partition);
  }

  /** The value of a header, or null. */
  static Bytes header(ConsumerRecord<?, ?> record, String name) {
    Header found = record.headers().lastHeader(name);
    return found == null ? null : new Bytes(found.value());
  }

  @Override
  public void close() {
    consumer.close();
  }
}
