import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.util.CloseableIterator;

/** Answers questions with Flink's DataStream API, in one JVM: one line of JSON a question comes out. */
public final class Asked {
    private Asked() {}

    public static void main(String[] arguments) throws Exception {
        ObjectMapper json = new ObjectMapper();
        for (JsonNode question : json.readTree(Path.of(arguments[0]).toFile())) {
            List<String> rows = answer(question);
            var found = json.createObjectNode();
            found.put("name", question.get("name").asText());
            found.put("flink", System.getProperty("flink.version"));
            rows.forEach(found.putArray("rows")::add);
            System.out.println(json.writeValueAsString(found));
        }
    }

    private static List<String> answer(JsonNode question) throws Exception {
        List<String> files = new ArrayList<>();
        question.get("files").forEach(file -> files.add(file.asText()));
        JsonNode bound = question.get("bound_ms");
        StreamExecutionEnvironment environment =
                StreamExecutionEnvironment.createLocalEnvironment(files.size(), new Configuration());
        Rows.Partitions source = new Rows.Partitions(files, bound.isNull() ? null : Long.valueOf(bound.asLong()));
        DataStream<Rows.Row> rows = environment.addSource(source, "rows", TypeInformation.of(Rows.Row.class));
        String[] asked = question.get("asked").asText().split("\\.");
        Object made =
                Class.forName(asked[0]).getMethod(asked[1], DataStream.class).invoke(null, rows);
        List<String> answers = new ArrayList<>();
        try (CloseableIterator<?> found = ((DataStream<?>) made).executeAndCollect()) {
            found.forEachRemaining(row -> answers.add((String) row));
        }
        return answers;
    }
}
