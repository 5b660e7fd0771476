package refold.bench;

import java.nio.charset.StandardCharsets;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.util.Collector;
import org.apache.kafka.clients.consumer.ConsumerRecord;

/** A record of the log, as it crosses from Flink's source to its fold. Flink needs the public fields. */
public final class Received {
    public String key;
    public byte[] id;
    public byte[] value;
    public long offset;
    public long recordedAt;

    /** Reads it from Kafka's record; decoding the value is the fold's work. */
    static final class Reader implements KafkaRecordDeserializationSchema<Received> {
        private static final long serialVersionUID = 1;
        private static final byte[] NONE = {};

        @Override
        public void deserialize(ConsumerRecord<byte[], byte[]> record, Collector<Received> out) {
            var received = new Received();
            var id = record.headers().lastHeader("refold-id");
            received.key = new String(record.key(), StandardCharsets.UTF_8);
            received.id = id == null ? NONE : id.value();
            received.value = record.value();
            received.offset = record.offset();
            received.recordedAt = record.timestamp();
            out.collect(received);
        }

        @Override
        public TypeInformation<Received> getProducedType() {
            return TypeInformation.of(Received.class);
        }
    }
}
