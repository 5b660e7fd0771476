package refold.bench;

import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.kafka.clients.producer.ProducerRecord;

/** A change as a record: its entity's key, and its bytes. */
final class Sent implements KafkaRecordSerializationSchema<Tuple2<byte[], byte[]>> {
    private static final long serialVersionUID = 1;
    private final String topic;

    Sent(String topic) {
        this.topic = topic;
    }

    @Override
    public ProducerRecord<byte[], byte[]> serialize(
            Tuple2<byte[], byte[]> change, KafkaSinkContext context, Long timestamp) {
        return new ProducerRecord<>(topic, change.f0, change.f1);
    }
}
