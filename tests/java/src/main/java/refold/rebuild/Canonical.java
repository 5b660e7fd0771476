package refold.rebuild;

import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericFixed;
import org.apache.avro.generic.IndexedRecord;

/** "Canonical values" of docs/FORMAT.md, of what Avro gives. */
final class Canonical {
  private static final BigInteger TEN = BigInteger.TEN;

  private Canonical() {}

  static Object value(Schema schema, Object datum) {
    return switch (schema.getType()) {
      case NULL -> null;
      case BOOLEAN -> datum;
      case INT, LONG -> BigInteger.valueOf(((Number) datum).longValue());
      case FLOAT, DOUBLE -> Numbers.canonical(((Number) datum).doubleValue());
      case STRING, ENUM -> datum.toString();
      case FIXED -> new Bytes(((GenericFixed) datum).bytes().clone());
      case BYTES -> bytes(schema, (ByteBuffer) datum);
      case ARRAY -> {
        List<Object> list = new ArrayList<>();
        ((List<?>) datum).forEach(each -> list.add(value(schema.getElementType(), each)));
        yield list;
      }
      case MAP -> {
        Map<String, Object> map = new LinkedHashMap<>();
        ((Map<?, ?>) datum).forEach((key, each) -> map.put(key.toString(), value(schema.getValueType(), each)));
        yield map;
      }
      case RECORD -> record((IndexedRecord) datum);
      case UNION -> value(schema.getTypes().get(GenericData.get().resolveUnion(schema, datum)), datum);
    };
  }

  /** The fields that are not null, by their first names. */
  static Map<String, Object> record(IndexedRecord datum) {
    Map<String, Object> found = new LinkedHashMap<>();
    for (Schema.Field field : datum.getSchema().getFields()) {
      Object value = datum.get(field.pos());
      if (value != null) {
        String first = field.getProp("refold.name");
        found.put(first == null ? field.name() : first, value(field.schema(), value));
      }
    }
    return found;
  }

  private static Object bytes(Schema schema, ByteBuffer datum) {
    byte[] raw = new byte[datum.remaining()];
    datum.duplicate().get(raw);
    if (!"decimal".equals(schema.getProp("logicalType"))) {
      return new Bytes(raw);
    }
    BigInteger unscaled = new BigInteger(raw);
    int scale = schema.getObjectProp("scale") instanceof Integer given ? given : 0;
    while (scale > 0 && unscaled.mod(TEN).signum() == 0) {
      unscaled = unscaled.divide(TEN);
      scale--;
    }
    return Map.of("unscaled", unscaled, "scale", BigInteger.valueOf(scale));
  }
}
