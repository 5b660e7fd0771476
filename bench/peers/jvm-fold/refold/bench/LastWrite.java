package refold.bench;

import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.Map;
import org.apache.avro.Schema;

/** The fold that the peers were measured by before refold was written: the last write wins, and nothing else is kept. */
final class LastWrite {
    private final Wire records;
    private final int observedAt;
    private final int fields;

    LastWrite(Schema schema) {
        records = new Wire(schema);
        observedAt = schema.getField("observed_at").pos();
        fields = schema.getField("fields").pos();
    }

    void fold(State state, byte[] value) {
        var given = records.read(value, 0);
        byte[] order = ByteBuffer.allocate(8).putLong((Long) given.get(observedAt)).array();
        state.version++;
        ((Map<?, ?>) given.get(fields)).forEach((name, each) -> {
            var held = state.fields.get(name.toString());
            if (held == null || Arrays.compareUnsigned(order, held.order()) >= 0) {
                state.fields.put(name.toString(), new State.Held(order, each));
            }
        });
    }
}
