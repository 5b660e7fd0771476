package refold.rebuild;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** "Type definitions" of docs/FORMAT.md. document: as it stands in `.schemas`; fields by their first names. */
record Definition(String name, JsonNode document, Map<String, Field> fields, Bytes fingerprint) {
  static Definition of(JsonNode document) {
    String full = document.required("name").textValue();
    Map<String, Field> fields = new LinkedHashMap<>();
    for (JsonNode each : document.required("fields")) {
      String name = each.path("refold.name").asText(each.required("name").textValue());
      fields.put(name, new Field(name, each.required("refold.reducer").textValue(), each.path("refold.limit").asInt()));
    }
    Bytes fingerprint = Digests.sha256(Cbor.encode(withoutDocs(document)));
    return new Definition(full.substring(full.lastIndexOf('.') + 1), document, fields, fingerprint);
  }

  private static Object withoutDocs(JsonNode json) {
    if (json.isObject()) {
      Map<String, Object> map = new HashMap<>();
      json.properties().forEach(each -> {
        if (!each.getKey().equals("doc")) {
          map.put(each.getKey(), withoutDocs(each.getValue()));
        }
      });
      return map;
    }
    if (json.isArray()) {
      List<Object> list = new ArrayList<>();
      json.forEach(each -> list.add(withoutDocs(each)));
      return list;
    }
    if (json.isIntegralNumber()) {
      return json.bigIntegerValue();
    }
    if (json.isNumber()) {
      return Numbers.canonical(json.doubleValue());
    }
    if (json.isBoolean()) {
      return json.booleanValue();
    }
    return json.isNull() ? null : json.textValue();
  }
}
