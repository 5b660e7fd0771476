package refold.rebuild;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.NavigableMap;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;

/** RebuildCut BOOTSTRAP PREFIX CUT...: for each cut a line of JSON, with the root or why there is none. */
public final class RebuildCut {
  private RebuildCut() {}

  public static void main(String[] arguments) throws IOException, ExecutionException, InterruptedException {
    ObjectMapper json = new ObjectMapper();
    PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    try (Log log = new Log(arguments[0], arguments[1])) {
      for (String text : List.of(arguments).subList(2, arguments.length)) {
        out.println(json.writeValueAsString(answer(log, text)));
      }
    }
  }

  private static Map<String, Object> answer(Log log, String text) throws IOException {
    try {
      return rebuild(log, Cut.parse(text));
    } catch (RefusedException error) {
      return Map.of("refused", error.getMessage());
    }
  }

  private static Map<String, Object> rebuild(Log log, Cut cut) throws IOException {
    Definitions definitions = new Definitions(log, cut.schemas());
    check(log, cut, definitions);
    NavigableMap<Bytes, Bytes> hashes = new TreeMap<>();
    Map<Integer, Long> epochs = new TreeMap<>();
    List<String> fallbacks = new ArrayList<>();
    long direct = 0;
    long reopened = 0;
    for (int partition : cut.offsets().keySet()) {
      PartitionRebuild part = new PartitionRebuild(log, partition, cut, definitions);
      part.run();
      hashes.putAll(part.hashes());
      if (part.epoch() != null) {
        epochs.put(partition, part.epoch());
      }
      fallbacks.addAll(part.fallbacks());
      direct += part.direct();
      reopened += part.reopened();
    }
    Map<String, Object> answer = new LinkedHashMap<>();
    answer.put("root", Digests.root(hashes.size(), Digests.slots(hashes)).toString());
    answer.put("entities", hashes.size());
    answer.put("epochs", epochs);
    answer.put("direct", direct);
    answer.put("reopened", reopened);
    answer.put("fallbacks", fallbacks);
    return answer;
  }

  private static void check(Log log, Cut cut, Definitions definitions) {
    if (!cut.log().equals(log.id())) {
      throw new RefusedException("a cut of another log");
    }
    if (cut.foldVersion() != 1) {
      throw new RefusedException("a cut of fold version " + cut.foldVersion());
    }
    if (!cut.types().equals(definitions.digest())) {
      throw new RefusedException("the definitions are not the cut's");
    }
  }
}
