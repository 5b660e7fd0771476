package refold.bench;

import org.apache.avro.Schema;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/** The plain fold, into a value of each key. */
final class PlainFold extends KeyedProcessFunction<String, Received, byte[]> {
    private static final long serialVersionUID = 1;

    private final String schema;
    private transient LastWrite fold;
    private transient State.Codec codec;
    private transient ValueState<byte[]> states;

    PlainFold(String schema) {
        this.schema = schema;
    }

    @Override
    public void open(OpenContext context) {
        fold = new LastWrite(new Schema.Parser().parse(schema));
        codec = new State.Codec();
        states = getRuntimeContext().getState(new ValueStateDescriptor<>("states", ObservationFold.BYTES));
    }

    @Override
    public void processElement(Received received, Context context, Collector<byte[]> out) throws Exception {
        byte[] found = states.value();
        var state = found == null ? new State() : codec.read(found);
        fold.fold(state, received.value);
        states.update(codec.write(state));
    }
}
