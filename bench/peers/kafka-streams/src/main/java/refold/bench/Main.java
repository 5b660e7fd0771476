package refold.bench;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Properties;
import org.apache.avro.Schema;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.Stores;

/** Main same|plain BOOTSTRAP TOPIC CHANGES APPLICATION FOLDER SCHEMA COMMIT_MS THREADS: folds until SIGTERM. */
public final class Main {
    static final String STATES = "states";
    static final String TIMELINE = "timeline";

    private Main() {}

    public static void main(String[] args) throws IOException {
        boolean isPlain = args[0].equals("plain");
        Schema schema = new Schema.Parser().parse(Files.readString(Path.of(args[6])));
        var topology = isPlain ? plain(args[2], schema) : same(args[2], args[3], schema);
        var streams = new KafkaStreams(topology, settings(args[1], args[4], args[5], args[7], Integer.parseInt(args[8])));
        streams.setStateListener((now, before) -> {
            // What the bench waits for where it measures a restore: all tables are whole again.
            System.out.println("state " + now);
            if (now == KafkaStreams.State.ERROR) {
                Runtime.getRuntime().halt(1);
            }
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(20))));
        streams.start();
    }

    private static Topology same(String topic, String changes, Schema schema) {
        return source(topic)
                .addProcessor("fold", () -> new ObservationFold(schema), "source")
                .addStateStore(states(), "fold")
                .addStateStore(timeline(), "fold")
                .addSink("changes", changes, new ByteArraySerializer(), new ByteArraySerializer(), "fold");
    }

    private static Topology plain(String topic, Schema schema) {
        return source(topic).addProcessor("fold", () -> new PlainFold(schema), "source").addStateStore(states(), "fold");
    }

    private static Topology source(String topic) {
        return new Topology().addSource("source", new ByteArrayDeserializer(), new ByteArrayDeserializer(), topic);
    }

    private static StoreBuilder<KeyValueStore<byte[], State>> states() {
        return Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore(STATES), Serdes.ByteArray(), serde())
                .withCachingEnabled();
    }

    private static Serde<State> serde() {
        // All stream threads share the serde; each has its own codec.
        var codecs = ThreadLocal.withInitial(State.Codec::new);
        return Serdes.serdeFrom((topic, state) -> state == null ? null : codecs.get().write(state),
                (topic, data) -> data == null ? null : codecs.get().read(data));
    }

    /** Each key is put once, so a cache would only cost. */
    private static StoreBuilder<KeyValueStore<byte[], byte[]>> timeline() {
        return Stores.keyValueStoreBuilder(
                Stores.persistentKeyValueStore(TIMELINE), Serdes.ByteArray(), Serdes.ByteArray());
    }

    private static Properties settings(
            String bootstrap, String application, String folder, String commitMs, int threads) {
        var settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, application);
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, folder);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, commitMs);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, threads);
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 64L << 20);
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG), 10_000);
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.MAX_POLL_RECORDS_CONFIG), 2000);
        settings.put(StreamsConfig.producerPrefix(ProducerConfig.BATCH_SIZE_CONFIG), 256 << 10);
        return settings;
    }
}
