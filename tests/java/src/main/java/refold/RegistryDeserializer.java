package refold;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.ByteBuffer;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.io.BinaryDecoder;
import org.apache.avro.io.DecoderFactory;
import org.apache.kafka.common.errors.SerializationException;
import org.apache.kafka.common.serialization.Deserializer;

/**
 * Reads messages in Confluent's wire format by the writer's schema, which the registry has under the id in the message.
 *
 * <p>What Confluent's KafkaAvroDeserializer does; that one is not on Maven Central.
 */
public final class RegistryDeserializer implements Deserializer<GenericRecord> {
  private final Map<Integer, Schema> schemas = new ConcurrentHashMap<>();
  private final HttpClient http = HttpClient.newHttpClient();
  private final String registry;

  public RegistryDeserializer(String registry) {
    this.registry = registry;
  }

  @Override
  public GenericRecord deserialize(String topic, byte[] message) {
    ByteBuffer frame = ByteBuffer.wrap(message);
    if (frame.get() != 0) {
      throw new SerializationException("no message in Confluent's wire format");
    }
    Schema schema = schemas.computeIfAbsent(frame.getInt(), this::fetch);
    BinaryDecoder body =
        DecoderFactory.get().binaryDecoder(message, frame.position(), frame.remaining(), null);
    try {
      GenericRecord found = new GenericDatumReader<GenericRecord>(schema).read(null, body);
      if (!body.isEnd()) {
        throw new SerializationException("bytes after the end of the Avro body");
      }
      return found;
    } catch (IOException error) {
      throw new SerializationException(error);
    }
  }

  private Schema fetch(int id) {
    try {
      HttpRequest question = HttpRequest.newBuilder(URI.create(registry + "/schemas/ids/" + id)).build();
      String answer = http.send(question, BodyHandlers.ofString()).body();
      return new Schema.Parser().parse(new ObjectMapper().readTree(answer).required("schema").textValue());
    } catch (IOException | InterruptedException error) {
      throw new SerializationException("schema " + id, error);
    }
  }
}
