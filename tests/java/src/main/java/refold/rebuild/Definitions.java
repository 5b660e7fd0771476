package refold.rebuild;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.avro.Schema;
import org.apache.kafka.clients.consumer.ConsumerRecord;

/** `.schemas` of docs/FORMAT.md: the newest definition of each type below an offset, and all that messages name. */
final class Definitions {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final Bytes EMBEDDED = Bytes.of("embedded");

  private final Map<String, Definition> newest = new TreeMap<>();
  private final Map<Integer, Schema> writers = new HashMap<>();

  /** One that may not follow those before it is not looked for: it needs two clients at the same moment. */
  Definitions(Log log, long below) throws IOException {
    Bytes space = null;
    Set<Bytes> known = new HashSet<>();
    for (ConsumerRecord<byte[], byte[]> each : log.read("schemas", 0)) {
      Bytes own = Log.header(each, "refold-id-space");
      space = space == null ? own : space;
      if (own == null || !own.equals(space)) {
        continue;
      }
      Definition definition = Definition.of(JSON.readTree(each.value()));
      if (!known.add(definition.fingerprint())) {
        continue;
      }
      if (each.offset() < below) {
        newest.put(definition.name(), definition);
      }
      String text = ObservationSchema.text(definition);
      int id = space.equals(EMBEDDED) ? embeddedId(text) : givenId(Log.header(each, "refold-ids"));
      writers.putIfAbsent(id, new Schema.Parser().parse(text));
    }
  }

  private static int embeddedId(String text) {
    return ByteBuffer.wrap(Digests.sha256(Bytes.of(text)).array()).getInt() >>> 1;
  }

  private static int givenId(Bytes ids) {
    return Tree.small(Tree.map(Cbor.decode(ids)).get("observation"));
  }

  /** The newest definition of an entity's type. */
  Definition of(String entity) {
    Definition found = newest.get(entity.substring(0, entity.indexOf('/')));
    if (found == null) {
      throw new RefusedException("no definition of the type of " + entity);
    }
    return found;
  }

  /** The schema that an observation's message was written by, or null. */
  Schema writer(int id) {
    return writers.get(id);
  }

  Bytes digest() {
    Map<String, Object> fingerprints = new TreeMap<>();
    newest.forEach((name, definition) -> fingerprints.put(name, definition.fingerprint()));
    return Digests.sha256(Cbor.encode(fingerprints));
  }
}
