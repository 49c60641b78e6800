package peers;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;

/** Nexmark's own connector, tables and queries, from its sources: the words of `SqlJob`, and the folder of the queries. */
public final class NexmarkJob {
    private static final Map<String, String> VALUES = Map.of(
        "NEXMARK_TABLE", "datagen", "TPS", "100000", "PERSON_PROPORTION", "1", "AUCTION_PROPORTION", "3",
        "BID_PROPORTION", "46", "KEEP_ALIVE", "false", "STOP_AT", "-1");

    private NexmarkJob() {}

    public static void main(String[] words) throws Exception {
        Path folder = Path.of(words[6]);
        StreamExecutionEnvironment env = Settings.environment(words);
        StreamTableEnvironment tables = StreamTableEnvironment.create(env);
        List<String> statements = new ArrayList<>();
        for (String name : List.of("ddl_gen_v2", "ddl_views", words[0].split("-")[1])) {
            StringBuilder text = new StringBuilder();
            for (String line : Files.readAllLines(folder.resolve(name + ".sql"))) {
                if (!line.strip().startsWith("--")) text.append(line.split(" -- ")[0]).append('\n');
            }
            String filled = text.toString().replace("${EVENTS_NUM}", words[1]);
            for (Map.Entry<String, String> value : VALUES.entrySet()) {
                filled = filled.replace("${" + value.getKey() + "}", value.getValue());
            }
            for (String statement : filled.split(";")) if (!statement.isBlank()) statements.add(statement.strip());
        }
        for (String statement : statements) {
            var result = tables.executeSql(statement);
            if (statement.toUpperCase().startsWith("INSERT")) result.await();
        }
        System.exit(0);
    }
}
