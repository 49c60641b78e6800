package peers;

import java.util.Map;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;

/** Flink SQL: `SqlJob WORKLOAD EVENTS BACKEND CHECKPOINT_MS MANAGED_MEMORY FOLDER [BROKER IN OUT]`. */
public final class SqlJob {
    private static final String TEN = "INTERVAL '10' SECOND";
    private static final String BY_WINDOW = "window_start, window_end";
    private static final String KEYED = ", PRIMARY KEY (k) NOT ENFORCED";
    private static final String HOT = "SELECT auction, count(*) AS num, " + BY_WINDOW + " FROM TABLE(HOP(TABLE bid, "
        + "DESCRIPTOR(`dateTime`), INTERVAL '2' SECOND, " + TEN + ")) GROUP BY auction, " + BY_WINDOW;
    /** Query: {types of the output's columns (the first four are checked), its text}. */
    private static final Map<String, String[]> NEXMARK = Map.of(
        "q0", new String[] {
            "k BIGINT, a TIMESTAMP(3), b BIGINT, c BIGINT, extra STRING",
            "SELECT bidder, `dateTime`, price, auction, extra FROM bid"},
        "q1", new String[] {
            "k BIGINT, a TIMESTAMP(3), b DECIMAL(23, 3), c BIGINT, extra STRING",
            "SELECT bidder, `dateTime`, 0.908 * price, auction, extra FROM bid"},
        "q2", new String[] {
            "k BIGINT, a BIGINT, b BIGINT, c BIGINT",
            "SELECT auction, price, price, price FROM bid WHERE MOD(auction, 123) = 0"},
        "q5", new String[] {
            "k BIGINT, a TIMESTAMP(3), b BIGINT, c BIGINT",
            "SELECT b.auction, b.window_end, b.num, b.num FROM (" + HOT + ") b JOIN (SELECT max(num) AS num, "
            + BY_WINDOW + " FROM (" + HOT + ") GROUP BY " + BY_WINDOW + ") top ON b.window_start = top.window_start "
            + "AND b.window_end = top.window_end AND b.num >= top.num"},
        "q7", new String[] {
            "k BIGINT, a TIMESTAMP(3), b BIGINT, c BIGINT, extra STRING",
            "SELECT b.bidder, b.`dateTime`, b.price, b.auction, b.extra FROM bid b JOIN (SELECT max(price) "
            + "AS price, " + BY_WINDOW + " FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(`dateTime`), " + TEN + ")) GROUP BY "
            + BY_WINDOW + ") top ON b.price = top.price WHERE b.`dateTime` >= top.window_start "
            + "AND b.`dateTime` < top.window_end"},
        "q11", new String[] {
            "k BIGINT, a TIMESTAMP(3), b BIGINT, c TIMESTAMP(3)",
            "SELECT bidder, SESSION_START(`dateTime`, " + TEN + "), count(*), SESSION_END(`dateTime`, " + TEN
            + ") FROM bid GROUP BY bidder, SESSION(`dateTime`, " + TEN + ")"},
        "q12", new String[] {
            "k BIGINT, a BIGINT, b BIGINT, c BIGINT",
            "SELECT bidder, num, bidder * num, num FROM (SELECT bidder, count(*) AS num FROM TABLE(TUMBLE(TABLE "
            + "bid_now, DESCRIPTOR(p), " + TEN + ")) GROUP BY bidder, " + BY_WINDOW + ")"},
        "q17", new String[] {
            "k BIGINT, a BIGINT, b BIGINT, c BIGINT, `day` STRING, r1 BIGINT, r2 BIGINT, r3 BIGINT, low BIGINT, "
            + "high BIGINT, middle BIGINT, whole BIGINT, PRIMARY KEY (k, `day`) NOT ENFORCED",
            "SELECT auction, n, n, n, `day`, r1, r2, r3, low, high, middle, whole FROM (SELECT auction, `day`, "
            + "count(*) AS n, count(*) FILTER (WHERE price < 10000) AS r1, "
            + "count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS r2, "
            + "count(*) FILTER (WHERE price >= 1000000) AS r3, min(price) AS low, max(price) AS high, "
            + "avg(price) AS middle, sum(price) AS whole FROM (SELECT auction, price, "
            + "DATE_FORMAT(`dateTime`, 'yyyy-MM-dd') AS `day` FROM bid) GROUP BY auction, `day`)"},
        "q18", new String[] {
            "k BIGINT, a TIMESTAMP(3), b BIGINT, c BIGINT, channel STRING, url STRING, extra STRING, "
            + "PRIMARY KEY (k, c) NOT ENFORCED",
            "SELECT bidder, `dateTime`, price, auction, channel, url, extra FROM (SELECT *, ROW_NUMBER() OVER "
            + "(PARTITION BY bidder, auction ORDER BY `dateTime` DESC) AS place FROM bid) WHERE place <= 1"});

    private SqlJob() {}

    public static void main(String[] words) throws Exception {
        String workload = words[0], events = words[1];
        StreamExecutionEnvironment env = Settings.environment(words);
        StreamTableEnvironment tables = StreamTableEnvironment.create(env);
        if (workload.equals("w4")) {
            kafka(tables, words);
            return;
        }
        String unit = workload.equals("w1") ? "10000" : workload.equals("w1s") ? "1000" : "0";
        String[] query = workload.startsWith("nexmark-") ? bids(tables, workload, events) : events(tables, workload, events);
        tables.executeSql("CREATE TABLE o (" + query[0] + ") WITH ('connector'='peers-sums', 'events'='" + events
            + "', 'unit'='" + unit + "')");
        tables.executeSql("INSERT INTO o " + query[1]).await();
        Sums.print();
        System.exit(0);
    }

    private static String[] bids(StreamTableEnvironment tables, String workload, String events) {
        String[] words = workload.split("-");
        if (!NEXMARK.containsKey(words[1])) throw new IllegalArgumentException("no workload " + workload);
        tables.executeSql("CREATE TABLE bid (" + Bids.COLUMNS + ", WATERMARK FOR `dateTime` AS `dateTime` - INTERVAL '4' "
            + "SECOND) WITH ('connector'='peers-bids', 'events'='" + events + "', 'whole'='" + (words.length > 2) + "')");
        tables.executeSql("CREATE VIEW bid_now AS SELECT bidder, PROCTIME() AS p FROM bid");
        return NEXMARK.get(words[1]);
    }

    private static String[] events(StreamTableEnvironment tables, String workload, String events) {
        tables.executeSql("CREATE TABLE ev (user_id BIGINT, amount BIGINT, ts TIMESTAMP_LTZ(3), WATERMARK FOR ts AS ts - "
            + "INTERVAL '5' SECOND) WITH ('connector'='peers-events', 'events'='" + events + "', 'keys'='"
            + (workload.startsWith("w2") ? 1_000_000 : 100_000) + "')");
        String windows = "k BIGINT, a TIMESTAMP(3), b BIGINT, c BIGINT";
        switch (workload) {
            case "w1": return new String[] {windows, windows("TUMBLE(TABLE ev, DESCRIPTOR(ts), " + TEN + ")")};
            case "w1s": return new String[] {
                windows, windows("HOP(TABLE ev, DESCRIPTOR(ts), INTERVAL '1' SECOND, " + TEN + ")")};
            case "w2":
            case "w2x": return new String[] {
                "k BIGINT, a BIGINT, b BIGINT, c BIGINT" + KEYED,
                "SELECT user_id, n, total, n FROM (SELECT user_id, count(*) AS n, sum(amount) AS total FROM ev "
                + "GROUP BY user_id)"};
            case "w3": return new String[] {
                "k BIGINT, a TIMESTAMP_LTZ(3), b BIGINT, c BIGINT",
                "SELECT user_id, ts, net, net FROM (SELECT user_id, ts, amount * 908 / 1000 AS net FROM ev "
                + "WHERE MOD(user_id, 4) <> 0)"};
            default: throw new IllegalArgumentException("no workload " + workload);
        }
    }

    private static String windows(String function) {
        return "SELECT user_id, window_end, count(*), sum(amount) FROM TABLE(" + function + ") GROUP BY user_id, "
            + BY_WINDOW;
    }

    /** JSON from a topic, read up to its present end; windows to a topic, exactly once. */
    private static void kafka(StreamTableEnvironment tables, String[] words) throws Exception {
        String broker = words[6], in = words[7], out = words[8];
        String kafka = "'connector'='kafka', 'properties.bootstrap.servers'='" + broker + "', 'format'='json', ";
        tables.executeSql("CREATE TABLE ev (user_id BIGINT, amount BIGINT, ts_ms BIGINT, ts AS TO_TIMESTAMP_LTZ(ts_ms, 3), "
            + "WATERMARK FOR ts AS ts - INTERVAL '5' SECOND) WITH (" + kafka + "'topic'='" + in + "', "
            + "'scan.startup.mode'='earliest-offset', 'scan.bounded.mode'='latest-offset')");
        tables.executeSql("CREATE TABLE o (user_id BIGINT, window_end BIGINT, cnt BIGINT, sm BIGINT) WITH (" + kafka
            + "'topic'='" + out + "', 'sink.delivery-guarantee'='exactly-once', 'sink.transactional-id-prefix'='" + out
            + "', 'properties.transaction.timeout.ms'='600000')");
        var job = tables.executeSql("INSERT INTO o SELECT user_id, TIMESTAMPDIFF(SECOND, TIMESTAMP '1970-01-01 00:00:00', window_end) "
            + "* CAST(1000 AS BIGINT), count(*), sum(amount) FROM TABLE(TUMBLE(TABLE ev, DESCRIPTOR(ts), " + TEN
            + ")) GROUP BY user_id, " + BY_WINDOW);
        long start = System.currentTimeMillis();
        job.await();
        System.out.println("BENCH {\"t_start\": " + start / 1000.0 + ", \"t_end\": "
            + System.currentTimeMillis() / 1000.0 + "}");
        System.exit(0);
    }
}
