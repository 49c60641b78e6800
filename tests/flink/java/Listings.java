import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.datastream.SingleOutputStreamOperator;
import org.apache.flink.streaming.api.datastream.WindowedStream;
import org.apache.flink.streaming.api.functions.windowing.ProcessWindowFunction;
import org.apache.flink.streaming.api.windowing.windows.GlobalWindow;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.util.Collector;
import org.apache.flink.util.OutputTag;

/** What the questions about windows make of a window's rows: a line that lists them, each time it fires. */
public final class Listings {
    /** Where late rows go. */
    public static final OutputTag<Rows.Row> LATE = new OutputTag<>("late", TypeInformation.of(Rows.Row.class)) {};

    private Listings() {}

    /** Rows of a window in their order. */
    public static DataStream<String> listed(WindowedStream<Rows.Row, String, TimeWindow> windows) {
        return windows.process(new Listing(false));
    }

    /** Rows of a window by number. */
    public static DataStream<String> sorted(WindowedStream<Rows.Row, String, TimeWindow> windows) {
        return windows.process(new Listing(true));
    }

    /** Rows of a global window in their order. */
    public static DataStream<String> global(WindowedStream<Rows.Row, String, GlobalWindow> windows) {
        return windows.process(new GlobalListing(false));
    }

    /** Rows of a global window by number. */
    public static DataStream<String> sortedGlobal(WindowedStream<Rows.Row, String, GlobalWindow> windows) {
        return windows.process(new GlobalListing(true));
    }

    /** Windows, and the rows that came too late for them. */
    public static DataStream<String> withLate(WindowedStream<Rows.Row, String, TimeWindow> windows) {
        SingleOutputStreamOperator<String> found = windows.sideOutputLateData(LATE).process(new Listing(true));
        return found.union(late(found));
    }

    /** Number and sum of each window, and the rows that came too late. */
    public static DataStream<String> totalsWithLate(WindowedStream<Rows.Row, String, TimeWindow> windows) {
        SingleOutputStreamOperator<String> found =
                windows.sideOutputLateData(LATE).aggregate(new Totals(), new TotalText());
        return found.union(late(found));
    }

    private static DataStream<String> late(SingleOutputStreamOperator<String> found) {
        return found.getSideOutput(LATE).map(row -> Rows.line(row.k, null, null, "late " + row.id));
    }

    /** Lists rows. */
    public static class Listing extends ProcessWindowFunction<Rows.Row, String, String, TimeWindow> {
        private final boolean sorted;

        public Listing(boolean sorted) {
            this.sorted = sorted;
        }

        @Override
        public void process(String key, Context context, Iterable<Rows.Row> rows, Collector<String> out) {
            TimeWindow window = context.window();
            String ids = sorted ? Rows.sortedIds(rows) : Rows.ids(rows);
            out.collect(Rows.line(Rows.name(key), window.getStart(), window.getEnd(), ids));
        }
    }

    /** Lists rows of a window without bounds. */
    public static class GlobalListing extends ProcessWindowFunction<Rows.Row, String, String, GlobalWindow> {
        private final boolean sorted;

        public GlobalListing(boolean sorted) {
            this.sorted = sorted;
        }

        @Override
        public void process(String key, Context context, Iterable<Rows.Row> rows, Collector<String> out) {
            out.collect(Rows.line(Rows.name(key), null, null, sorted ? Rows.sortedIds(rows) : Rows.ids(rows)));
        }
    }

    /** Remembers how often its window has fired and how many rows it has seen, and says so when it is over. */
    public static class Remembering extends ProcessWindowFunction<Rows.Row, String, String, TimeWindow> {
        private final ValueStateDescriptor<Long> fired = new ValueStateDescriptor<>("fired", Long.class);

        @Override
        public void process(String key, Context context, Iterable<Rows.Row> rows, Collector<String> out)
                throws Exception {
            ValueState<Long> state = context.windowState().getState(fired);
            long count = state.value() == null ? 1 : state.value() + 1;
            state.update(count);
            String told = count + ": " + Rows.ids(rows) + " at " + context.currentWatermark();
            TimeWindow window = context.window();
            out.collect(Rows.line(Rows.name(key), window.getStart(), window.getEnd(), told));
        }

        @Override
        public void clear(Context context) throws Exception {
            context.windowState().getState(fired).clear();
        }
    }

    /** The row with the highest score, as a line. */
    public static DataStream<String> rows(DataStream<Rows.Row> rows) {
        return rows.map(row -> Rows.line(row.k, row.id, row.score));
    }

    /** Of two rows the one with the higher score. */
    public static Rows.Row best(Rows.Row left, Rows.Row right) {
        return left.score >= right.score ? left : right;
    }

    /** Number and sum of scores. */
    public static class Totals implements AggregateFunction<Rows.Row, long[], long[]> {
        @Override
        public long[] createAccumulator() {
            return new long[2];
        }

        @Override
        public long[] add(Rows.Row row, long[] sums) {
            return new long[] {sums[0] + 1, sums[1] + row.score};
        }

        @Override
        public long[] getResult(long[] sums) {
            return sums;
        }

        @Override
        public long[] merge(long[] left, long[] right) {
            return new long[] {left[0] + right[0], left[1] + right[1]};
        }
    }

    /** Writes totals as one text. */
    public static class TotalText extends ProcessWindowFunction<long[], String, String, TimeWindow> {
        @Override
        public void process(String key, Context context, Iterable<long[]> sums, Collector<String> out) {
            TimeWindow window = context.window();
            for (long[] sum : sums) {
                String told = sum[0] + " " + sum[1];
                out.collect(Rows.line(Rows.name(key), window.getStart(), window.getEnd(), told));
            }
        }
    }

    /** Writes totals as a line. */
    public static class Total extends ProcessWindowFunction<long[], String, String, TimeWindow> {
        @Override
        public void process(String key, Context context, Iterable<long[]> sums, Collector<String> out) {
            TimeWindow window = context.window();
            for (long[] sum : sums) {
                out.collect(Rows.line(Rows.name(key), window.getStart(), window.getEnd(), sum[0], sum[1]));
            }
        }
    }
}
