import java.util.ArrayList;
import java.util.List;
import java.util.TreeMap;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.MapState;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.datastream.SingleOutputStreamOperator;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.ProcessFunction;
import org.apache.flink.streaming.api.functions.co.KeyedCoProcessFunction;
import org.apache.flink.util.Collector;

/** Questions about process functions: state, timers, side outputs. */
public final class Timers {
    private Timers() {}

    /** A watermark before the first and behind the last row is none. */
    private static Long known(long watermark) {
        return watermark == Long.MIN_VALUE || watermark == Long.MAX_VALUE ? null : Long.valueOf(watermark);
    }

    /** A function with a list of what its key has seen. */
    private abstract static class Seeing extends KeyedProcessFunction<String, Rows.Row, String> {
        protected transient ListState<Long> ids;

        @Override
        public void open(OpenContext context) {
            ids = getRuntimeContext().getListState(new ListStateDescriptor<>("ids", Long.class));
        }

        protected String seen() throws Exception {
            List<String> found = new ArrayList<>();
            for (Long id : ids.get()) {
                found.add(Long.toString(id));
            }
            return String.join(",", found);
        }
    }

    public static DataStream<String> several(DataStream<Rows.Row> rows) {
        return rows.keyBy(Rows.KEY).process(new Several());
    }

    /** Two timers a row, one of them on a whole second, where they meet; every third row takes one back. */
    public static class Several extends Seeing {
        @Override
        public void processElement(Rows.Row row, Context context, Collector<String> out) throws Exception {
            ids.add(row.id);
            context.timerService().registerEventTimeTimer(row.ts + 3_000);
            long round = row.ts - row.ts % 4_000 + 8_000;
            if (row.id % 3 == 0) {
                context.timerService().deleteEventTimeTimer(round);
            } else {
                context.timerService().registerEventTimeTimer(round);
            }
        }

        @Override
        public void onTimer(long time, OnTimerContext context, Collector<String> out) throws Exception {
            out.collect(Rows.line(Rows.name(context.getCurrentKey()), time, null, seen()));
            ids.clear();
        }
    }

    public static DataStream<String> byTimers(DataStream<Rows.Row> rows) {
        return rows.keyBy(Rows.KEY).process(new ByTimers());
    }

    /** Timers register timers: one in their future, one in their past; and take others back. */
    public static class ByTimers extends Seeing {
        @Override
        public void processElement(Rows.Row row, Context context, Collector<String> out) throws Exception {
            ids.add(row.id);
            context.timerService().registerEventTimeTimer(row.ts - row.ts % 1_000);
        }

        @Override
        public void onTimer(long time, OnTimerContext context, Collector<String> out) throws Exception {
            out.collect(Rows.line(Rows.name(context.getCurrentKey()), time, null, seen()));
            if (time % 1_000 == 0) {
                context.timerService().registerEventTimeTimer(time - 1_500);
                context.timerService().registerEventTimeTimer(time + 2_250);
            } else if (time % 1_000 == 250) {
                context.timerService().deleteEventTimeTimer(time + 750);
                context.timerService().registerEventTimeTimer(time + 375);
                ids.clear();
            }
        }
    }

    public static DataStream<String> past(DataStream<Rows.Row> rows) {
        return rows.keyBy(Rows.KEY).process(new Past());
    }

    /** A timer at the time of the row itself and one long before: those that are due wait for the next watermark. */
    public static class Past extends Seeing {
        @Override
        public void processElement(Rows.Row row, Context context, Collector<String> out) throws Exception {
            ids.add(row.id);
            context.timerService().registerEventTimeTimer(row.ts);
            context.timerService().registerEventTimeTimer(row.ts - 60_000);
            String told = context.timestamp() + " " + known(context.timerService().currentWatermark());
            out.collect(Rows.line(Rows.name(context.getCurrentKey()), row.id, null, told));
        }

        @Override
        public void onTimer(long time, OnTimerContext context, Collector<String> out) throws Exception {
            out.collect(Rows.line(Rows.name(context.getCurrentKey()), time, context.timestamp(), seen()));
            ids.clear();
        }
    }

    public static DataStream<String> lateAside(DataStream<Rows.Row> rows) {
        SingleOutputStreamOperator<String> found = rows.keyBy(Rows.KEY).process(new LateAside());
        return found.union(
                found.getSideOutput(Listings.LATE).process(new AsideOf()));
    }

    /** Rows behind the watermark go to a side output, others are counted. */
    public static class LateAside extends Seeing {
        @Override
        public void processElement(Rows.Row row, Context context, Collector<String> out) throws Exception {
            if (row.ts <= context.timerService().currentWatermark()) {
                context.output(Listings.LATE, row);
            } else {
                ids.add(row.id);
                out.collect(Rows.line(Rows.name(context.getCurrentKey()), row.id, context.timestamp(), seen()));
            }
        }
    }

    /** Tells the event time of rows of the side output. */
    public static class AsideOf
            extends ProcessFunction<Rows.Row, String> {
        @Override
        public void processElement(Rows.Row row, Context context, Collector<String> out) {
            out.collect(Rows.line(row.k, row.id, context.timestamp(), "late"));
        }
    }

    public static DataStream<String> timesOfResults(DataStream<Rows.Row> rows) {
        return rows.keyBy(Rows.KEY)
                .process(new Passing())
                .keyBy(Rows.KEY)
                .window(Windows.tumbling(10))
                .aggregate(new Listings.Totals(), new Listings.Total());
    }

    /** Hands every third row on at once, the newest one when a timer is due. */
    public static class Passing extends KeyedProcessFunction<String, Rows.Row, Rows.Row> {
        private transient ValueState<Rows.Row> newest;

        @Override
        public void open(OpenContext context) {
            newest = getRuntimeContext().getState(new ValueStateDescriptor<>("newest", Rows.Row.class));
        }

        @Override
        public void processElement(Rows.Row row, Context context, Collector<Rows.Row> out) throws Exception {
            newest.update(row);
            context.timerService().registerEventTimeTimer(row.ts + 7_000);
            if (row.id % 3 == 0) {
                out.collect(row);
            }
        }

        @Override
        public void onTimer(long time, OnTimerContext context, Collector<Rows.Row> out) throws Exception {
            out.collect(newest.value());
        }
    }

    public static DataStream<String> sums(DataStream<Rows.Row> rows) {
        return rows.keyBy(Rows.KEY).process(new Sums());
    }

    /** Rows wait for the watermark in a map by time; every ten seconds they are added up. */
    public static class Sums extends KeyedProcessFunction<String, Rows.Row, String> {
        private transient MapState<Long, Long> byTime;

        @Override
        public void open(OpenContext context) {
            byTime = getRuntimeContext().getMapState(new MapStateDescriptor<>("by-time", Long.class, Long.class));
        }

        @Override
        public void processElement(Rows.Row row, Context context, Collector<String> out) throws Exception {
            Long there = byTime.get(row.ts);
            byTime.put(row.ts, (there == null ? 0 : there) + row.score);
            context.timerService().registerEventTimeTimer(row.ts - row.ts % 10_000 + 10_000);
        }

        @Override
        public void onTimer(long time, OnTimerContext context, Collector<String> out) throws Exception {
            long sum = 0;
            List<Long> over = new ArrayList<>();
            for (Long at : byTime.keys()) {
                if (at < time) {
                    sum += byTime.get(at);
                    over.add(at);
                }
            }
            for (Long at : over) {
                byTime.remove(at);
            }
            out.collect(Rows.line(Rows.name(context.getCurrentKey()), time, over.size(), Long.toString(sum)));
        }
    }

    public static DataStream<String> connected(DataStream<Rows.Row> rows) {
        DataStream<Rows.Row> left = rows.filter(row -> row.side.equals("L"));
        DataStream<Rows.Row> right = rows.filter(row -> row.side.equals("R"));
        return left.connect(right).keyBy(Rows.KEY, Rows.KEY).process(new Connected());
    }

    /** A row of the left waits until the watermark has passed it, and is told the newest of the right before it. */
    public static class Connected extends KeyedCoProcessFunction<String, Rows.Row, Rows.Row, String> {
        private transient MapState<Long, String> waiting;
        private transient MapState<Long, Long> right;

        @Override
        public void open(OpenContext context) {
            waiting = getRuntimeContext().getMapState(new MapStateDescriptor<>("waiting", Long.class, String.class));
            right = getRuntimeContext().getMapState(new MapStateDescriptor<>("right", Long.class, Long.class));
        }

        @Override
        public void processElement1(Rows.Row row, Context context, Collector<String> out) throws Exception {
            TreeMap<Long, Boolean> ids = new TreeMap<>();
            if (waiting.contains(row.ts)) {
                for (String id : waiting.get(row.ts).split(",")) {
                    ids.put(Long.valueOf(id), true);
                }
            }
            ids.put(row.id, true);
            List<String> texts = new ArrayList<>();
            ids.keySet().forEach(id -> texts.add(Long.toString(id)));
            waiting.put(row.ts, String.join(",", texts));
            context.timerService().registerEventTimeTimer(row.ts);
        }

        @Override
        public void processElement2(Rows.Row row, Context context, Collector<String> out) throws Exception {
            Long there = right.get(row.ts);
            right.put(row.ts, there == null ? row.score : Math.max(there, row.score));
        }

        @Override
        public void onTimer(long time, OnTimerContext context, Collector<String> out) throws Exception {
            Long newest = null;
            for (Long at : right.keys()) {
                newest = at <= time && (newest == null || at > newest) ? at : newest;
            }
            Long score = newest == null ? null : right.get(newest);
            out.collect(Rows.line(Rows.name(context.getCurrentKey()), time, score, waiting.get(time)));
            waiting.remove(time);
        }
    }
}
