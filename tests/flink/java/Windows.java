import java.time.Duration;
import org.apache.flink.api.common.eventtime.Watermark;
import org.apache.flink.api.common.eventtime.WatermarkGenerator;
import org.apache.flink.api.common.eventtime.WatermarkOutput;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.datastream.KeyedStream;
import org.apache.flink.streaming.api.windowing.assigners.EventTimeSessionWindows;
import org.apache.flink.streaming.api.windowing.assigners.GlobalWindows;
import org.apache.flink.streaming.api.windowing.assigners.SlidingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.evictors.TimeEvictor;
import org.apache.flink.streaming.api.windowing.triggers.EventTimeTrigger;

/** Questions about windows and late rows. */
public final class Windows {
    private Windows() {}

    private static KeyedStream<Rows.Row, String> keyed(DataStream<Rows.Row> rows) {
        return rows.keyBy(Rows.KEY);
    }

    static TumblingEventTimeWindows tumbling(int seconds) {
        return TumblingEventTimeWindows.of(Duration.ofSeconds(seconds));
    }

    static SlidingEventTimeWindows sliding(int size, int slide) {
        return SlidingEventTimeWindows.of(Duration.ofSeconds(size), Duration.ofSeconds(slide));
    }

    static EventTimeSessionWindows session(int gap) {
        return EventTimeSessionWindows.withGap(Duration.ofSeconds(gap));
    }

    public static DataStream<String> tumblingLateness(DataStream<Rows.Row> rows) {
        return Listings.listed(keyed(rows).window(tumbling(20)).allowedLateness(Duration.ofSeconds(15)));
    }

    public static DataStream<String> slidingLateness(DataStream<Rows.Row> rows) {
        return Listings.listed(keyed(rows).window(sliding(20, 5)).allowedLateness(Duration.ofSeconds(8)));
    }

    public static DataStream<String> sessionLateness(DataStream<Rows.Row> rows) {
        return Listings.sorted(keyed(rows).window(session(4)).allowedLateness(Duration.ofSeconds(10)));
    }

    public static DataStream<String> cumulativeLateness(DataStream<Rows.Row> rows) {
        return Listings.listed(keyed(rows).window(new CumulativeWindows(10, 40)).allowedLateness(Duration.ofSeconds(15)));
    }

    public static DataStream<String> tumblingLate(DataStream<Rows.Row> rows) {
        return Listings.withLate(keyed(rows).window(tumbling(10)).allowedLateness(Duration.ofSeconds(5)));
    }

    public static DataStream<String> sessionLate(DataStream<Rows.Row> rows) {
        return Listings.withLate(keyed(rows).window(session(3)));
    }

    /** Windows with gaps between them: rows in a gap are in no window. */
    public static DataStream<String> gapsLate(DataStream<Rows.Row> rows) {
        return Listings.withLate(keyed(rows).window(sliding(4, 10)));
    }

    public static DataStream<String> cumulativeLate(DataStream<Rows.Row> rows) {
        return Listings.withLate(keyed(rows).window(new CumulativeWindows(10, 30)));
    }

    public static DataStream<String> tumblingLateTotals(DataStream<Rows.Row> rows) {
        return Listings.totalsWithLate(keyed(rows).window(tumbling(10)));
    }

    public static DataStream<String> sessionLateTotals(DataStream<Rows.Row> rows) {
        return Listings.totalsWithLate(keyed(rows).window(session(3)));
    }

    public static DataStream<String> gapsLateTotals(DataStream<Rows.Row> rows) {
        return Listings.totalsWithLate(keyed(rows).window(sliding(4, 10)));
    }

    public static DataStream<String> cumulativeLateTotals(DataStream<Rows.Row> rows) {
        return Listings.totalsWithLate(keyed(rows).window(new CumulativeWindows(10, 30)));
    }

    public static DataStream<String> countWindow(DataStream<Rows.Row> rows) {
        return Listings.global(keyed(rows).countWindow(4));
    }

    public static DataStream<String> countWindowSliding(DataStream<Rows.Row> rows) {
        return Listings.global(keyed(rows).countWindow(5, 2));
    }

    /** Flink sorts the input of a window that comes out at the end only by time: its order is no answer. */
    public static DataStream<String> globalAtEnd(DataStream<Rows.Row> rows) {
        return Listings.sortedGlobal(keyed(rows).window(GlobalWindows.createWithEndOfStreamTrigger()));
    }

    /** Sessions, late firings too, counted by the windows into which their results fall. */
    public static DataStream<String> windowsOfWindows(DataStream<Rows.Row> rows) {
        return keyed(rows)
                .window(session(2))
                .allowedLateness(Duration.ofSeconds(20))
                .reduce(Listings::best)
                .keyBy(Rows.KEY)
                .window(tumbling(30))
                .aggregate(new Listings.Totals(), new Listings.Total());
    }

    public static DataStream<String> windowState(DataStream<Rows.Row> rows) {
        return keyed(rows)
                .window(sliding(20, 10))
                .allowedLateness(Duration.ofSeconds(12))
                .process(new Listings.Remembering());
    }

    /** Event time given anew behind the source, by the watermarks of only some of the rows. */
    public static DataStream<String> assigned(DataStream<Rows.Row> rows) {
        WatermarkStrategy<Rows.Row> strategy =
                WatermarkStrategy.<Rows.Row>forGenerator(context -> new ByRow())
                        .withTimestampAssigner((row, before) -> row.ts + 500);
        DataStream<Rows.Row> some = rows.filter(row -> row.g != null).assignTimestampsAndWatermarks(strategy);
        return Listings.withLate(keyed(some).window(tumbling(10)));
    }

    /** The watermarks that rows carry. */
    public static class ByRow implements WatermarkGenerator<Rows.Row> {
        @Override
        public void onEvent(Rows.Row row, long timestamp, WatermarkOutput output) {
            if (row.wm != null) {
                output.emitWatermark(new Watermark(row.wm));
            }
        }

        @Override
        public void onPeriodicEmit(WatermarkOutput output) {}
    }

    public static DataStream<String> tumblingDisorder(DataStream<Rows.Row> rows) {
        return Listings.sorted(keyed(rows).window(tumbling(15)).trigger(EventTimeTrigger.create()));
    }

    public static DataStream<String> sessionDisorder(DataStream<Rows.Row> rows) {
        return Listings.sorted(keyed(rows).window(session(2)));
    }

    public static DataStream<String> evictedDisorder(DataStream<Rows.Row> rows) {
        return Listings.sorted(keyed(rows).window(sliding(20, 5)).evictor(TimeEvictor.of(Duration.ofSeconds(6))));
    }
}
