import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Collectors;
import java.util.stream.StreamSupport;
import org.apache.flink.api.java.functions.KeySelector;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.core.JsonProcessingException;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.flink.streaming.api.functions.source.legacy.RichParallelSourceFunction;
import org.apache.flink.streaming.api.watermark.Watermark;

/** Rows of an input, the source that gives them with their watermarks, and the form of answers. */
public final class Rows {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final String NULL = "\0";

    private Rows() {}

    /** A row, as tests.flink.streams has it; times in milliseconds. */
    public static class Row {
        public long id;
        public String side;
        public String k;
        public Long g;
        public Long v;
        public long score;
        public long ts;
        public Long wm;
    }

    /** The key of a row: k, where null has a place too. */
    public static final KeySelector<Row, String> KEY = row -> row.k == null ? NULL : row.k;

    /** What a key is called in an answer. */
    public static String name(String key) {
        return key.equals(NULL) ? null : key;
    }

    /** Values as a line of an answer. */
    public static String line(Object... values) {
        try {
            return JSON.writeValueAsString(Arrays.asList(values));
        } catch (JsonProcessingException error) {
            throw new IllegalStateException(error);
        }
    }

    /** Numbers of rows in the order in which they come. */
    public static String ids(Iterable<Row> rows) {
        return StreamSupport.stream(rows.spliterator(), false)
                .map(row -> Long.toString(row.id))
                .collect(Collectors.joining(","));
    }

    /** Numbers of rows, the smallest first: for sessions, which Flink merges in no order, and several partitions. */
    public static String sortedIds(Iterable<Row> rows) {
        return StreamSupport.stream(rows.spliterator(), false)
                .map(row -> row.id)
                .sorted()
                .map(id -> Long.toString(id))
                .collect(Collectors.joining(","));
    }

    /** Each subtask gives the rows of one file, and behind each row the watermark that follows from it. */
    public static class Partitions extends RichParallelSourceFunction<Row> {
        private final List<String> files;
        private final Long bound;

        /** Without a bound (null), rows carry watermarks. */
        public Partitions(List<String> files, Long bound) {
            this.files = new ArrayList<>(files);
            this.bound = bound;
        }

        @Override
        public void run(SourceContext<Row> context) throws Exception {
            Path file = Path.of(files.get(getRuntimeContext().getTaskInfo().getIndexOfThisSubtask()));
            long newest = Long.MIN_VALUE;
            for (String text : Files.readAllLines(file, StandardCharsets.UTF_8)) {
                Row row = row(JSON.readTree(text));
                context.collectWithTimestamp(row, row.ts);
                Long watermark = bound == null ? row.wm : Long.valueOf(row.ts - bound - 1);
                if (watermark != null && watermark > newest) {
                    newest = watermark;
                    context.emitWatermark(new Watermark(newest));
                }
            }
        }

        @Override
        public void cancel() {}
    }

    private static Row row(JsonNode node) {
        Row row = new Row();
        row.id = node.get("id").asLong();
        row.side = node.get("side").asText();
        row.k = node.get("k").isNull() ? null : node.get("k").asText();
        row.g = number(node, "g");
        row.v = number(node, "v");
        row.score = node.get("score").asLong();
        row.ts = node.get("ts").asLong();
        row.wm = number(node, "wm");
        return row;
    }

    private static Long number(JsonNode node, String name) {
        return node.get(name).isNull() ? null : Long.valueOf(node.get(name).asLong());
    }
}
