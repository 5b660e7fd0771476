package refold.bench;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;
import org.apache.avro.Schema;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.datastream.KeyedStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.OffsetResetStrategy;
import org.apache.kafka.clients.producer.ProducerConfig;

/** Main same|plain BOOTSTRAP TOPIC CHANGES GROUP FOLDER SCHEMA COMMIT_MS THREADS: folds until SIGTERM. */
public final class Main {
    private Main() {}

    public static void main(String[] args) throws Exception {
        boolean isPlain = args[0].equals("plain");
        String schema = Files.readString(Path.of(args[6]));
        var environment = StreamExecutionEnvironment.createLocalEnvironment(
                Integer.parseInt(args[8]), settings(Path.of(args[5]), args[7], args[8]));
        KeyedStream<Received, String> received = environment
                .fromSource(source(args[1], args[2], args[4]), WatermarkStrategy.noWatermarks(), "observations")
                .keyBy(each -> each.key);
        if (isPlain) {
            received.process(new PlainFold(schema)).sinkTo(new DiscardingSink<>());
        } else {
            received.process(new ObservationFold(schema)).sinkTo(sink(args[1], args[3], args[4]));
        }
        environment.execute();
    }

    /** Checkpoints are Flink's commits: they flush RocksDB, commit the sink's transactions and then the group's offsets. */
    private static Configuration settings(Path folder, String commitMs, String threads) throws IOException {
        Files.createDirectories(folder);
        var settings = new Configuration();
        settings.setString("execution.checkpointing.interval", commitMs + " ms");
        settings.setString("execution.checkpointing.mode", "EXACTLY_ONCE");
        settings.setString("execution.checkpointing.incremental", "true");
        settings.setString("execution.checkpointing.dir", folder.resolve("checkpoints").toUri().toString());
        settings.setString("state.backend.type", "rocksdb");
        settings.setString("state.backend.rocksdb.localdir", folder.resolve("rocksdb").toString());
        settings.setString("io.tmp.dirs", Files.createDirectories(folder.resolve("temporary")).toString());
        settings.setString("taskmanager.numberOfTaskSlots", threads);
        settings.setString("taskmanager.memory.managed.size", "512m");
        settings.setString("pipeline.object-reuse", "true");
        settings.setString("rest.address", "127.0.0.1");
        settings.setString("rest.bind-address", "127.0.0.1");
        settings.setString("rest.bind-port", "0");
        return settings;
    }

    private static KafkaSource<Received> source(String bootstrap, String topic, String group) {
        return KafkaSource.<Received>builder()
                .setBootstrapServers(bootstrap)
                .setTopics(topic)
                .setGroupId(group)
                .setStartingOffsets(OffsetsInitializer.committedOffsets(OffsetResetStrategy.EARLIEST))
                .setProperty(ConsumerConfig.MAX_POLL_RECORDS_CONFIG, "2000")
                .setProperty("partition.discovery.interval.ms", "-1")
                .setDeserializer(new Received.Reader())
                .build();
    }

    private static KafkaSink<Tuple2<byte[], byte[]>> sink(String bootstrap, String changes, String group) {
        var settings = new Properties();
        settings.put(ProducerConfig.BATCH_SIZE_CONFIG, 256 << 10);
        settings.put(ProducerConfig.TRANSACTION_TIMEOUT_CONFIG, 60_000);
        return KafkaSink.<Tuple2<byte[], byte[]>>builder()
                .setBootstrapServers(bootstrap)
                .setKafkaProducerConfig(settings)
                .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
                .setTransactionalIdPrefix(group)
                .setRecordSerializer(new Sent(changes))
                .build();
    }
}
