package refold.bench;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import org.apache.avro.Schema;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.MapState;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.PrimitiveArrayTypeInfo;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/** The worker's work, as in the peer kafka-streams: the state as a value, the timeline as a map of each entity. */
final class ObservationFold extends KeyedProcessFunction<String, Received, Tuple2<byte[], byte[]>> {
    static final TypeInformation<byte[]> BYTES = PrimitiveArrayTypeInfo.BYTE_PRIMITIVE_ARRAY_TYPE_INFO;
    private static final long serialVersionUID = 1;

    private final String schema;
    private transient Fold fold;
    private transient State.Codec codec;
    private transient ValueState<byte[]> states;
    private transient MapState<byte[], byte[]> timeline;

    ObservationFold(String schema) {
        this.schema = schema;
    }

    @Override
    public void open(OpenContext context) {
        fold = new Fold(new Schema.Parser().parse(schema));
        codec = new State.Codec();
        states = getRuntimeContext().getState(new ValueStateDescriptor<>("states", BYTES));
        timeline = getRuntimeContext().getMapState(new MapStateDescriptor<>("timeline", BYTES, BYTES));
    }

    @Override
    public void processElement(Received received, Context context, Collector<Tuple2<byte[], byte[]>> out)
            throws Exception {
        var observation = fold.read(received.value);
        byte[] order = fold.order(observation, received.id);
        byte[] found = states.value();
        var state = found == null ? new State() : codec.read(found);
        boolean isNewest = Arrays.compareUnsigned(order, state.last) > 0;
        if (!isNewest && timeline.contains(order)) {
            return;
        }
        timeline.put(order, received.value);
        byte[] key = received.key.getBytes(StandardCharsets.UTF_8);
        var arrived = new Fold.Arrived(key, received.id, received.offset, received.recordedAt);
        byte[] change = fold.fold(state, arrived, observation, order, isNewest);
        states.update(codec.write(state));
        out.collect(Tuple2.of(key, change));
    }
}
