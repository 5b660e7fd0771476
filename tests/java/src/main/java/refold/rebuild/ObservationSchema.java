package refold.rebuild;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;

/** "Messages" of docs/FORMAT.md: derives the text of the schema by which a type's observations are written. */
final class ObservationSchema {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final String NULL = "null";
  private static final Set<String> NAMED = Set.of("record", "enum", "fixed");
  private static final Set<String> WITHOUT_NULLS = Set.of("union", "append");
  private static final Map<String, Object> ID = Map.of("type", "fixed", "name", "refold.Id", "size", 32);
  private static final Map<String, Object> MICROS = Map.of("type", "long", "logicalType", "timestamp-micros");
  private static final List<String> KINDS = List.of("assert", "link", "unlink");

  private final Set<Object> emitted = new HashSet<>();

  private ObservationSchema() {}

  static String text(Definition definition) {
    return new ObservationSchema().derive(definition);
  }

  private String derive(Definition definition) {
    List<Object> patch = new ArrayList<>();
    for (JsonNode each : definition.document().required("fields")) {
      patch.add(patchField(each));
    }
    Object ids = Map.of("type", "array", "items", ID);
    Map<String, Object> link = record("refold.Link", List.of(
        field("relation", "string"),
        field("target", "string"),
        field("valid_from", List.of(NULL, MICROS)),
        field("valid_to", List.of(NULL, MICROS))));
    Map<String, Object> source = record("refold.Source", List.of(
        field("agent", "string"),
        field("run", "string"),
        field("step", "string"),
        field("tool", "string"),
        field("seq", "long")));
    Map<String, Object> observation = record("refold.observation." + definition.name(), List.of(
        field("entity", "string"),
        field("kind", Map.of("type", "enum", "name", "refold.Kind", "symbols", KINDS)),
        field("observed_at", MICROS),
        field("priority", "int"),
        field("source", source),
        field("causes", ids),
        field("patch", record("refold.patch." + definition.name(), patch)),
        field("cleared", Map.of("type", "array", "items", "string")),
        field("retracts", ids),
        field("link", List.of(NULL, link)),
        field("subject", "string")));
    try {
      return JSON.writeValueAsString(emit(observation));
    } catch (JsonProcessingException error) {
      throw new UncheckedIOException(error);
    }
  }

  private static Map<String, Object> record(String name, List<Object> fields) {
    return Map.of("type", "record", "name", name, "fields", fields);
  }

  private static Map<String, Object> field(String name, Object type) {
    Map<String, Object> found = new HashMap<>(Map.of("name", name, "type", type));
    if (type instanceof List) {
      found.put("default", null);
    }
    return found;
  }

  private Object patchField(JsonNode given) {
    Map<String, Object> whole = Tree.map(JSON.convertValue(given, Object.class));
    Object type = whole.get("type");
    if (WITHOUT_NULLS.contains(Tree.text(whole.get("refold.reducer")))) {
      type = withoutNullElements(type);
    }
    List<Object> branches = new ArrayList<>(List.of(NULL));
    branches(type).stream().filter(each -> !each.equals(NULL)).forEach(branches::add);
    Map<String, Object> found = field(Tree.text(whole.get("name")), branches);
    if (whole.containsKey("aliases")) {
      found.put("aliases", whole.get("aliases"));
    }
    if (!whole.getOrDefault("refold.name", whole.get("name")).equals(whole.get("name"))) {
      found.put("refold.name", whole.get("refold.name"));
    }
    return found;
  }

  private static Object withoutNullElements(Object type) {
    List<Object> found = new ArrayList<>();
    for (Object branch : branches(type)) {
      if (branch instanceof Map && Tree.map(branch).get("items") instanceof List<?> items) {
        List<?> rest = items.stream().filter(each -> !each.equals(NULL)).toList();
        Map<String, Object> bare = new HashMap<>(Tree.map(branch));
        bare.put("items", rest.size() == 1 ? rest.get(0) : rest);
        found.add(bare);
      } else {
        found.add(branch);
      }
    }
    return found.size() == 1 ? found.get(0) : found;
  }

  private static List<Object> branches(Object type) {
    return type instanceof List ? Tree.list(type) : List.of(type);
  }

  /** A type with its keys sorted, without docs, each named type in full where it comes first. */
  private Object emit(Object type) {
    if (type instanceof List) {
      return Tree.list(type).stream().map(this::emit).toList();
    }
    if (type instanceof String) {
      return type;
    }
    Map<String, Object> given = Tree.map(type);
    if (NAMED.contains(given.get("type")) && !emitted.add(given.get("name"))) {
      return given.get("name");
    }
    Map<String, Object> found = new TreeMap<>();
    given.forEach((key, value) -> {
      switch (key) {
        case "doc" -> { }
        case "items", "values" -> found.put(key, emit(value));
        case "fields" -> found.put(key, Tree.list(value).stream().map(this::emitField).toList());
        default -> found.put(key, value);
      }
    });
    return found;
  }

  private Object emitField(Object field) {
    Map<String, Object> found = new TreeMap<>(Tree.map(field));
    found.remove("doc");
    found.put("type", emit(found.get("type")));
    return found;
  }
}
