package refold.bench;

import org.apache.avro.Schema;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;

/** The plain fold, into a store of states. */
final class PlainFold implements Processor<byte[], byte[], Void, Void> {
    private final LastWrite fold;
    private KeyValueStore<byte[], State> states;

    PlainFold(Schema schema) {
        fold = new LastWrite(schema);
    }

    @Override
    public void init(ProcessorContext<Void, Void> context) {
        states = context.getStateStore(Main.STATES);
    }

    @Override
    public void process(Record<byte[], byte[]> record) {
        var found = states.get(record.key());
        var state = found == null ? new State() : found;
        fold.fold(state, record.value());
        states.put(record.key(), state);
    }
}
