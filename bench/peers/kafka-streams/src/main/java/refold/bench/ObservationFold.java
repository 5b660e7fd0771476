package refold.bench;

import java.nio.ByteBuffer;
import java.util.Arrays;
import org.apache.avro.Schema;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * The worker's work: each observation counts once, is put into its entity's timeline, sets the fields it is the newest for,
 * and goes out as a change.
 *
 * <p>An observation newer than all of its entity's cannot be known; only the others are looked up in the timeline.
 */
final class ObservationFold implements Processor<byte[], byte[], byte[], byte[]> {
    private final Fold fold;
    private ProcessorContext<byte[], byte[]> context;
    private KeyValueStore<byte[], State> states;
    private KeyValueStore<byte[], byte[]> timeline;

    ObservationFold(Schema schema) {
        fold = new Fold(schema);
    }

    @Override
    public void init(ProcessorContext<byte[], byte[]> given) {
        context = given;
        states = given.getStateStore(Main.STATES);
        timeline = given.getStateStore(Main.TIMELINE);
    }

    @Override
    public void process(Record<byte[], byte[]> record) {
        byte[] id = record.headers().lastHeader("refold-id").value();
        var observation = fold.read(record.value());
        byte[] order = fold.order(observation, id);
        byte[] place = place(record.key(), order);
        var found = states.get(record.key());
        var state = found == null ? new State() : found;
        boolean isNewest = Arrays.compareUnsigned(order, state.last) > 0;
        if (!isNewest && timeline.get(place) != null) {
            return;
        }
        timeline.put(place, record.value());
        var arrived = new Fold.Arrived(
                record.key(), id, context.recordMetadata().orElseThrow().offset(), record.timestamp());
        byte[] change = fold.fold(state, arrived, observation, order, isNewest);
        states.put(record.key(), state);
        context.forward(record.withValue(change));
    }

    private static byte[] place(byte[] key, byte[] order) {
        return ByteBuffer.allocate(key.length + 1 + order.length).put(key).put((byte) 0).put(order).array();
    }
}
