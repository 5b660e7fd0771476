package refold.bench;

import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.Map;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericRecord;

/** One entity: version, the greatest order of all that was folded, and of each field its value and what won it. */
final class State {
    private static final Schema SCHEMA = new Schema.Parser().parse("""
            {"type": "record", "name": "State", "fields": [
              {"name": "version", "type": "long"}, {"name": "last", "type": "bytes"},
              {"name": "fields", "type": {"type": "map", "values": {"type": "record", "name": "Field", "fields": [
                {"name": "order", "type": "bytes"},
                {"name": "value", "type": ["null", "boolean", "long", "double", "string"]}]}}}]}""");
    private static final Schema FIELD = SCHEMA.getField("fields").schema().getValueType();

    long version;
    byte[] last = {};
    final Map<String, Held> fields = new HashMap<>();

    /** A field's value, and the order of the observation that set it. */
    record Held(byte[] order, Object value) {}

    /** States to and from bytes, for one thread. */
    static final class Codec {
        private final Wire wire = new Wire(SCHEMA);

        byte[] write(State state) {
            return wire.write(record(state));
        }

        State read(byte[] data) {
            return state(wire.read(data, 0));
        }
    }

    private static GenericRecord record(State state) {
        var fields = new HashMap<String, GenericRecord>();
        state.fields.forEach((name, held) -> {
            var field = new GenericData.Record(FIELD);
            field.put(0, ByteBuffer.wrap(held.order));
            field.put(1, held.value);
            fields.put(name, field);
        });
        var record = new GenericData.Record(SCHEMA);
        record.put(0, state.version);
        record.put(1, ByteBuffer.wrap(state.last));
        record.put(2, fields);
        return record;
    }

    private static State state(GenericRecord record) {
        var state = new State();
        state.version = (Long) record.get(0);
        state.last = bytes(record.get(1));
        ((Map<?, ?>) record.get(2)).forEach((name, each) -> {
            var field = (GenericRecord) each;
            state.fields.put(name.toString(), new Held(bytes(field.get(0)), field.get(1)));
        });
        return state;
    }

    private static byte[] bytes(Object given) {
        var buffer = (ByteBuffer) given;
        var bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        return bytes;
    }
}
