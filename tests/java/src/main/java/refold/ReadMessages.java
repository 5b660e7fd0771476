package refold;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericEnumSymbol;
import org.apache.avro.generic.GenericFixed;
import org.apache.avro.generic.GenericRecord;

/** ReadMessages REGISTRY: each line of the input is a message in base 64; each line of the output what it says, as JSON. */
public final class ReadMessages {
  private ReadMessages() {}

  public static void main(String[] arguments) throws IOException {
    PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    ObjectMapper json = new ObjectMapper();
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
    try (RegistryDeserializer deserializer = new RegistryDeserializer(arguments[0])) {
      for (String line = in.readLine(); line != null; line = in.readLine()) {
        GenericRecord found = deserializer.deserialize("", Base64.getDecoder().decode(line));
        out.println(json.writeValueAsString(plain(found)));
      }
    }
    out.flush();
  }

  /** Avro's values as JSON's: bytes and fixed are texts of hexadecimal digits behind 0x. */
  private static Object plain(Object value) {
    if (value instanceof GenericRecord) {
      GenericRecord record = (GenericRecord) value;
      Map<String, Object> fields = new LinkedHashMap<>();
      for (Schema.Field field : record.getSchema().getFields()) {
        fields.put(field.name(), plain(record.get(field.pos())));
      }
      return fields;
    }
    if (value instanceof Map) {
      Map<String, Object> entries = new LinkedHashMap<>();
      ((Map<?, ?>) value).forEach((key, each) -> entries.put(key.toString(), plain(each)));
      return entries;
    }
    if (value instanceof List) {
      List<Object> elements = new ArrayList<>();
      ((List<?>) value).forEach(each -> elements.add(plain(each)));
      return elements;
    }
    if (value instanceof ByteBuffer) {
      ByteBuffer bytes = (ByteBuffer) value;
      byte[] copy = new byte[bytes.remaining()];
      bytes.duplicate().get(copy);
      return "0x" + HexFormat.of().formatHex(copy);
    }
    if (value instanceof GenericFixed) {
      return "0x" + HexFormat.of().formatHex(((GenericFixed) value).bytes());
    }
    if (value instanceof CharSequence || value instanceof GenericEnumSymbol) {
      return value.toString();
    }
    return value;
  }
}
