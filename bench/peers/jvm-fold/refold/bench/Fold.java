package refold.bench;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.util.Utf8;

/** The worker's fold without its tables: what one observation does to a state, and the change that it gives. For one thread. */
final class Fold {
    private static final int FRAME = 5;
    private static final Schema CHANGE = new Schema.Parser().parse("""
            {"type": "record", "name": "Change", "fields": [
              {"name": "entity", "type": "string"}, {"name": "version", "type": "long"},
              {"name": "offset", "type": "long"}, {"name": "id", "type": "bytes"},
              {"name": "observed_at", "type": "long"}, {"name": "recorded_at", "type": "long"},
              {"name": "agent", "type": "string"}, {"name": "run", "type": "string"}, {"name": "seq", "type": "long"},
              {"name": "mutations", "type": {"type": "map", "values": {"type": "record", "name": "Mutation", "fields": [
                {"name": "old", "type": ["null", "boolean", "long", "double", "string"]},
                {"name": "new", "type": ["null", "boolean", "long", "double", "string"]}]}}}]}""");
    private static final Schema MUTATION = CHANGE.getField("mutations").schema().getValueType();

    private final Wire observations;
    private final Wire changes = new Wire(CHANGE);
    private final Schema.Field[] fields;
    private final int observedAt;
    private final int source;
    private final int patch;

    Fold(Schema schema) {
        observations = new Wire(schema);
        observedAt = schema.getField("observed_at").pos();
        source = schema.getField("source").pos();
        patch = schema.getField("patch").pos();
        fields = schema.getField("patch").schema().getFields().toArray(Schema.Field[]::new);
    }

    GenericRecord read(byte[] value) {
        return observations.read(value, FRAME);
    }

    /** Folds an observation that is new into its state, and returns the change's bytes. */
    byte[] fold(State state, Arrived arrived, GenericRecord observation, byte[] order, boolean isNewest) {
        if (isNewest) {
            state.last = order;
        }
        state.version++;
        var mutations = apply((GenericRecord) observation.get(patch), order, state);
        return changes.write(change(arrived, observation, state.version, mutations));
    }

    /** What the log says of an observation. */
    record Arrived(byte[] key, byte[] id, long offset, long recordedAt) {}

    private Map<String, GenericRecord> apply(GenericRecord values, byte[] order, State state) {
        var mutations = new HashMap<String, GenericRecord>();
        for (var field : fields) {
            Object value = values.get(field.pos());
            if (value == null) {
                continue;
            }
            var held = state.fields.get(field.name());
            if (held != null && Arrays.compareUnsigned(order, held.order()) < 0) {
                continue;
            }
            state.fields.put(field.name(), new State.Held(order, value));
            if (held == null || !held.value().equals(value)) {
                var mutation = new GenericData.Record(MUTATION);
                mutation.put(0, held == null ? null : held.value());
                mutation.put(1, value);
                mutations.put(field.name(), mutation);
            }
        }
        return mutations;
    }

    private GenericRecord change(Arrived arrived, GenericRecord observation, long version,
            Map<String, GenericRecord> mutations) {
        var by = (GenericRecord) observation.get(source);
        var change = new GenericData.Record(CHANGE);
        change.put(0, new Utf8(arrived.key));
        change.put(1, version);
        change.put(2, arrived.offset);
        change.put(3, ByteBuffer.wrap(arrived.id));
        change.put(4, observation.get(observedAt));
        change.put(5, arrived.recordedAt);
        change.put(6, by.get("agent"));
        change.put(7, by.get("run"));
        change.put(8, by.get("seq"));
        change.put(9, mutations);
        return change;
    }

    /** Bytes that sort as (observed_at, agent, run, seq, id) do. */
    byte[] order(GenericRecord observation, byte[] id) {
        var by = (GenericRecord) observation.get(source);
        byte[] agent = by.get("agent").toString().getBytes(StandardCharsets.UTF_8);
        byte[] run = by.get("run").toString().getBytes(StandardCharsets.UTF_8);
        return ByteBuffer.allocate(18 + agent.length + run.length + id.length)
                .putLong((Long) observation.get(observedAt) ^ Long.MIN_VALUE)
                .put(agent).put((byte) 0).put(run).put((byte) 0)
                .putLong((Long) by.get("seq")).put(id).array();
    }
}
