import java.time.Duration;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.streaming.api.datastream.AllWindowedStream;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.datastream.SingleOutputStreamOperator;
import org.apache.flink.streaming.api.functions.windowing.AllWindowFunction;
import org.apache.flink.streaming.api.functions.windowing.ProcessAllWindowFunction;
import org.apache.flink.streaming.api.windowing.evictors.CountEvictor;
import org.apache.flink.streaming.api.windowing.triggers.CountTrigger;
import org.apache.flink.streaming.api.windowing.triggers.PurgingTrigger;
import org.apache.flink.streaming.api.windowing.windows.GlobalWindow;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.util.Collector;

/** Questions about windows over the rows of all keys. */
public final class AllWindows {
    private AllWindows() {}

    public static DataStream<String> tumblingLate(DataStream<Rows.Row> rows) {
        return withLate(rows.windowAll(Windows.tumbling(10)).allowedLateness(Duration.ofSeconds(5)));
    }

    public static DataStream<String> sessionLate(DataStream<Rows.Row> rows) {
        return withLate(rows.windowAll(Windows.session(1)).allowedLateness(Duration.ofSeconds(4)));
    }

    public static DataStream<String> slidingDisorder(DataStream<Rows.Row> rows) {
        return rows.windowAll(Windows.sliding(20, 5)).process(new Listing());
    }

    public static DataStream<String> evicted(DataStream<Rows.Row> rows) {
        return rows.windowAll(Windows.tumbling(20)).evictor(CountEvictor.of(3)).process(new Listing());
    }

    public static DataStream<String> bestOfThree(DataStream<Rows.Row> rows) {
        return Listings.rows(
                rows.windowAll(Windows.tumbling(20))
                        .trigger(PurgingTrigger.of(CountTrigger.of(3)))
                        .reduce(Listings::best));
    }

    public static DataStream<String> countWindow(DataStream<Rows.Row> rows) {
        return rows.countWindowAll(7).apply(new Counted());
    }

    public static DataStream<String> countWindowSliding(DataStream<Rows.Row> rows) {
        return rows.countWindowAll(9, 4).apply(new Counted());
    }

    private static DataStream<String> withLate(AllWindowedStream<Rows.Row, TimeWindow> windows) {
        SingleOutputStreamOperator<String> found =
                windows.sideOutputLateData(Listings.LATE).process(new Listing());
        return found.union(
                found.getSideOutput(Listings.LATE).map(row -> Rows.line(null, null, "late " + row.id)));
    }

    /** Numbers of a window's rows. */
    public static class Listing extends ProcessAllWindowFunction<Rows.Row, String, TimeWindow> {
        @Override
        public void process(Context context, Iterable<Rows.Row> rows, Collector<String> out) {
            TimeWindow window = context.window();
            out.collect(Rows.line(window.getStart(), window.getEnd(), Rows.sortedIds(rows)));
        }
    }

    /** Numbers of the rows of a window without bounds. */
    public static class Counted implements AllWindowFunction<Rows.Row, String, GlobalWindow> {
        @Override
        public void apply(GlobalWindow window, Iterable<Rows.Row> rows, Collector<String> out) {
            out.collect(Rows.line(Rows.ids(rows)));
        }
    }

    /** Sessions that are made of the rows of both sides. */
    public static DataStream<String> sessionJoin(DataStream<Rows.Row> rows) {
        return side(rows, "L")
                .join(side(rows, "R"))
                .where(Rows.KEY)
                .equalTo(Rows.KEY)
                .window(Windows.session(3))
                .apply((left, right) -> Rows.line(left.k, left.id, right.id), TypeInformation.of(String.class));
    }

    /** The same, with the rows of sessions that have rows of one side alone. */
    public static DataStream<String> sessionJoinFull(DataStream<Rows.Row> rows) {
        return side(rows, "L")
                .coGroup(side(rows, "R"))
                .where(Rows.KEY)
                .equalTo(Rows.KEY)
                .window(Windows.session(1))
                .apply(AllWindows::full, TypeInformation.of(String.class));
    }

    private static DataStream<Rows.Row> side(DataStream<Rows.Row> rows, String side) {
        return rows.filter(row -> row.side.equals(side));
    }

    private static void full(Iterable<Rows.Row> lefts, Iterable<Rows.Row> rights, Collector<String> out) {
        for (Rows.Row left : lefts) {
            for (Rows.Row right : rights) {
                out.collect(Rows.line(left.k, left.id, right.id));
            }
            if (!rights.iterator().hasNext()) {
                out.collect(Rows.line(left.k, left.id, null));
            }
        }
        for (Rows.Row right : rights) {
            if (!lefts.iterator().hasNext()) {
                out.collect(Rows.line(right.k, null, right.id));
            }
        }
    }

    /** Keys that a function computes. */
    public static DataStream<String> keyFunction(DataStream<Rows.Row> rows) {
        return Listings.listed(rows.keyBy(row -> row.side + row.id % 3).window(Windows.tumbling(20)));
    }
}
