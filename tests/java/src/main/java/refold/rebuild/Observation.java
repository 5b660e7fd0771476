package refold.rebuild;

import java.io.IOException;
import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.IndexedRecord;
import org.apache.avro.io.BinaryDecoder;
import org.apache.avro.io.DecoderFactory;

/**
 * "Identity" and "Order" of docs/FORMAT.md.
 *
 * @param source agent 00 run 00, as it stands in q
 * @param link {relation, target, valid_from, valid_to}, or null
 */
record Observation(
    Bytes id,
    Bytes q,
    Bytes source,
    String entity,
    String kind,
    long observedAt,
    int priority,
    Map<String, Object> patch,
    List<Object> cleared,
    List<Object> retracts,
    Map<String, Object> link) {
  private static final Map<String, String> KEYS =
      Map.of(
          "entity", "e", "kind", "k", "observed_at", "o", "priority", "p", "source", "s", "causes", "c",
          "cleared", "x", "retracts", "r", "link", "l", "subject", "u");

  boolean isLink() {
    return kind.equals("link");
  }

  /** The observation in a message, or null where it is none. Whether its sets are sorted is not looked at. */
  static Observation read(Definitions definitions, Bytes message) {
    ByteBuffer frame = ByteBuffer.wrap(message.array());
    if (frame.remaining() < 5 || frame.get() != 0) {
      return null;
    }
    Schema schema = definitions.writer(frame.getInt());
    if (schema == null) {
      return null;
    }
    BinaryDecoder body =
        DecoderFactory.get().binaryDecoder(message.array(), frame.position(), frame.remaining(), null);
    try {
      IndexedRecord datum = new GenericDatumReader<IndexedRecord>(schema).read(null, body);
      return body.isEnd() ? of(Canonical.record(datum)) : null;
    } catch (IOException | RuntimeException error) {
      return null;
    }
  }

  private static Observation of(Map<String, Object> given) {
    String entity = Tree.text(given.get("entity"));
    Map<String, Object> patch = Tree.map(given.get("patch"));
    Map<String, Object> source = Tree.map(given.get("source"));
    Map<String, Object> hashed = new HashMap<>();
    KEYS.forEach((name, key) -> hashed.put(key, name.equals("source") ? withoutDefaults(source) : given.get(name)));
    hashed.put("t", entity.substring(0, entity.indexOf('/')));
    hashed.put("f", patch);
    Bytes id = Digests.sha256(Bytes.of("refold/1\0"), Cbor.encode(withoutDefaults(hashed)));

    long observedAt = Tree.number(given.get("observed_at"));
    Bytes named = Bytes.of(Tree.text(source.get("agent")) + "\0" + Tree.text(source.get("run")) + "\0");
    ByteBuffer q = ByteBuffer.allocate(8 + named.size() + 8 + id.size());
    q.putLong(observedAt ^ Long.MIN_VALUE).put(named.array()).putLong(Tree.number(source.get("seq"))).put(id.array());
    return new Observation(
        id,
        new Bytes(q.array()),
        named,
        entity,
        Tree.text(given.get("kind")),
        observedAt,
        Tree.small(given.get("priority")),
        patch,
        Tree.list(given.get("cleared")),
        Tree.list(given.get("retracts")),
        given.containsKey("link") ? Tree.map(given.get("link")) : null);
  }

  private static Map<String, Object> withoutDefaults(Map<String, Object> given) {
    Map<String, Object> found = new LinkedHashMap<>(given);
    found.values().removeIf(value ->
        value == null
            || value.equals("")
            || value.equals(BigInteger.ZERO)
            || value instanceof List<?> list && list.isEmpty()
            || value instanceof Map<?, ?> map && map.isEmpty());
    return found;
  }
}
