package refold.bench;

import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.Map;
import org.apache.avro.Schema;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;

/** The fold that the peers were measured by before refold was written: the last write wins, and nothing else is kept. */
final class PlainFold implements Processor<byte[], byte[], Void, Void> {
    private final Wire records;
    private final int observedAt;
    private final int fields;
    private KeyValueStore<byte[], State> states;

    PlainFold(Schema schema) {
        records = new Wire(schema);
        observedAt = schema.getField("observed_at").pos();
        fields = schema.getField("fields").pos();
    }

    @Override
    public void init(ProcessorContext<Void, Void> context) {
        states = context.getStateStore(Main.STATES);
    }

    @Override
    public void process(Record<byte[], byte[]> record) {
        var given = records.read(record.value(), 0);
        byte[] order = ByteBuffer.allocate(8).putLong((Long) given.get(observedAt)).array();
        var found = states.get(record.key());
        var state = found == null ? new State() : found;
        state.version++;
        ((Map<?, ?>) given.get(fields)).forEach((name, value) -> {
            var held = state.fields.get(name.toString());
            if (held == null || Arrays.compareUnsigned(order, held.order()) >= 0) {
                state.fields.put(name.toString(), new State.Held(order, value));
            }
        });
        states.put(record.key(), state);
    }
}
