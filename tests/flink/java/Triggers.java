import java.time.Duration;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.datastream.KeyedStream;
import org.apache.flink.streaming.api.functions.windowing.delta.DeltaFunction;
import org.apache.flink.streaming.api.windowing.assigners.GlobalWindows;
import org.apache.flink.streaming.api.windowing.evictors.CountEvictor;
import org.apache.flink.streaming.api.windowing.evictors.DeltaEvictor;
import org.apache.flink.streaming.api.windowing.evictors.TimeEvictor;
import org.apache.flink.streaming.api.windowing.triggers.ContinuousEventTimeTrigger;
import org.apache.flink.streaming.api.windowing.triggers.CountTrigger;
import org.apache.flink.streaming.api.windowing.triggers.DeltaTrigger;
import org.apache.flink.streaming.api.windowing.triggers.EventTimeTrigger;
import org.apache.flink.streaming.api.windowing.triggers.PurgingTrigger;
import org.apache.flink.streaming.api.windowing.triggers.Trigger;
import org.apache.flink.streaming.api.windowing.triggers.TriggerResult;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;

/** Questions about triggers and evictors. */
public final class Triggers {
    private static final double FAR = 400_000_000_000.0;
    private static final DeltaFunction<Rows.Row> SCORES = (old, row) -> Math.abs(row.score - old.score);

    private Triggers() {}

    private static KeyedStream<Rows.Row, String> keyed(DataStream<Rows.Row> rows) {
        return rows.keyBy(Rows.KEY);
    }

    private static Duration seconds(int seconds) {
        return Duration.ofSeconds(seconds);
    }

    public static DataStream<String> count(DataStream<Rows.Row> rows) {
        return Listings.listed(
                keyed(rows).window(Windows.tumbling(20)).allowedLateness(seconds(5)).trigger(CountTrigger.of(3)));
    }

    public static DataStream<String> purgingCount(DataStream<Rows.Row> rows) {
        return Listings.listed(
                keyed(rows)
                        .window(Windows.sliding(30, 10))
                        .allowedLateness(seconds(8))
                        .trigger(PurgingTrigger.of(CountTrigger.of(2))));
    }

    public static DataStream<String> purgingEventTime(DataStream<Rows.Row> rows) {
        return Listings.listed(
                keyed(rows)
                        .window(Windows.tumbling(20))
                        .allowedLateness(seconds(15))
                        .trigger(PurgingTrigger.of(EventTimeTrigger.create())));
    }

    public static DataStream<String> countSession(DataStream<Rows.Row> rows) {
        return Listings.sorted(
                keyed(rows).window(Windows.session(4)).allowedLateness(seconds(6)).trigger(CountTrigger.of(2)));
    }

    public static DataStream<String> purgingCountSession(DataStream<Rows.Row> rows) {
        return Listings.sorted(
                keyed(rows)
                        .window(Windows.session(5))
                        .allowedLateness(seconds(6))
                        .trigger(PurgingTrigger.of(CountTrigger.of(3))));
    }

    public static DataStream<String> purgingSession(DataStream<Rows.Row> rows) {
        return Listings.sorted(
                keyed(rows)
                        .window(Windows.session(4))
                        .allowedLateness(seconds(12))
                        .trigger(PurgingTrigger.of(EventTimeTrigger.create())));
    }

    public static DataStream<String> continuous(DataStream<Rows.Row> rows) {
        return Listings.listed(
                keyed(rows)
                        .window(Windows.tumbling(30))
                        .allowedLateness(seconds(10))
                        .trigger(ContinuousEventTimeTrigger.of(seconds(7))));
    }

    public static DataStream<String> purgingContinuous(DataStream<Rows.Row> rows) {
        return Listings.listed(
                keyed(rows)
                        .window(Windows.sliding(24, 12))
                        .trigger(PurgingTrigger.of(ContinuousEventTimeTrigger.of(seconds(5)))));
    }

    public static DataStream<String> continuousSession(DataStream<Rows.Row> rows) {
        return Listings.sorted(
                keyed(rows)
                        .window(Windows.session(5))
                        .allowedLateness(seconds(5))
                        .trigger(ContinuousEventTimeTrigger.of(seconds(3))));
    }

    public static DataStream<String> continuousTotals(DataStream<Rows.Row> rows) {
        return keyed(rows)
                .window(Windows.tumbling(30))
                .trigger(ContinuousEventTimeTrigger.of(seconds(10)))
                .aggregate(new Listings.Totals(), new Listings.Total());
    }

    public static DataStream<String> countReduce(DataStream<Rows.Row> rows) {
        return Listings.rows(
                keyed(rows)
                        .window(Windows.tumbling(30))
                        .trigger(PurgingTrigger.of(CountTrigger.of(2)))
                        .reduce(Listings::best));
    }

    public static DataStream<String> delta(DataStream<Rows.Row> rows) {
        return Listings.global(
                keyed(rows)
                        .window(GlobalWindows.create())
                        .trigger(DeltaTrigger.of(FAR, SCORES, rowSerializer(rows))));
    }

    public static DataStream<String> purgingDelta(DataStream<Rows.Row> rows) {
        return Listings.listed(
                keyed(rows)
                        .window(Windows.tumbling(60))
                        .trigger(PurgingTrigger.of(DeltaTrigger.of(FAR, SCORES, rowSerializer(rows)))));
    }

    private static org.apache.flink.api.common.typeutils.TypeSerializer<Rows.Row> rowSerializer(
            DataStream<Rows.Row> rows) {
        return TypeInformation.of(Rows.Row.class)
                .createSerializer(rows.getExecutionEnvironment().getConfig().getSerializerConfig());
    }

    public static DataStream<String> own(DataStream<Rows.Row> rows) {
        return Listings.listed(
                keyed(rows).window(Windows.tumbling(20)).allowedLateness(seconds(10)).trigger(new BySide()));
    }

    /** Fires and forgets at rows of the right side, and whenever a timer of the window is due, its last one too. */
    public static class BySide extends Trigger<Rows.Row, TimeWindow> {
        @Override
        public TriggerResult onElement(Rows.Row row, long timestamp, TimeWindow window, TriggerContext context) {
            if (row.side.equals("R")) {
                return TriggerResult.FIRE_AND_PURGE;
            }
            context.registerEventTimeTimer(timestamp + 2_000);
            if (row.id % 3 == 0) {
                context.deleteEventTimeTimer(timestamp - timestamp % 5_000 + 5_000);
            } else {
                context.registerEventTimeTimer(timestamp - timestamp % 5_000 + 5_000);
            }
            return TriggerResult.CONTINUE;
        }

        @Override
        public TriggerResult onEventTime(long time, TimeWindow window, TriggerContext context) {
            return TriggerResult.FIRE;
        }

        @Override
        public TriggerResult onProcessingTime(long time, TimeWindow window, TriggerContext context) {
            return TriggerResult.CONTINUE;
        }

        @Override
        public void clear(TimeWindow window, TriggerContext context) {}
    }

    public static DataStream<String> evictCount(DataStream<Rows.Row> rows) {
        return Listings.listed(
                keyed(rows).window(Windows.tumbling(20)).allowedLateness(seconds(15)).evictor(CountEvictor.of(3)));
    }

    public static DataStream<String> evictCountAfter(DataStream<Rows.Row> rows) {
        return Listings.listed(
                keyed(rows)
                        .window(Windows.tumbling(30))
                        .trigger(CountTrigger.of(2))
                        .evictor(CountEvictor.of(3, true)));
    }

    public static DataStream<String> evictTime(DataStream<Rows.Row> rows) {
        return Listings.listed(
                keyed(rows)
                        .window(Windows.sliding(20, 5))
                        .allowedLateness(seconds(10))
                        .evictor(TimeEvictor.of(seconds(4))));
    }

    public static DataStream<String> evictTimeAfter(DataStream<Rows.Row> rows) {
        return Listings.global(
                keyed(rows)
                        .window(GlobalWindows.create())
                        .trigger(CountTrigger.of(3))
                        .evictor(TimeEvictor.of(seconds(10), true)));
    }

    public static DataStream<String> evictDelta(DataStream<Rows.Row> rows) {
        return Listings.listed(
                keyed(rows)
                        .window(Windows.tumbling(30))
                        .trigger(CountTrigger.of(2))
                        .evictor(DeltaEvictor.of(FAR, (row, last) -> Math.abs(last.score - row.score))));
    }

    public static DataStream<String> evictDeltaAfter(DataStream<Rows.Row> rows) {
        return Listings.global(
                keyed(rows)
                        .window(GlobalWindows.create())
                        .trigger(CountTrigger.of(2))
                        .evictor(DeltaEvictor.of(FAR, (row, last) -> Math.abs(last.score - row.score), true)));
    }

    public static DataStream<String> evictSession(DataStream<Rows.Row> rows) {
        return Listings.sorted(
                keyed(rows)
                        .window(Windows.session(4))
                        .allowedLateness(seconds(8))
                        .evictor(TimeEvictor.of(seconds(3), true)));
    }
}
