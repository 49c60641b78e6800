package peers;

import java.time.Duration;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.PrimitiveArrayTypeInfo;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.connector.sink2.Sink;
import org.apache.flink.api.connector.sink2.SinkWriter;
import org.apache.flink.api.connector.sink2.WriterInitContext;
import org.apache.flink.connector.datagen.source.DataGeneratorSource;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.datastream.WindowedStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.windowing.ProcessWindowFunction;
import org.apache.flink.streaming.api.windowing.assigners.SlidingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.util.Collector;

/** Flink's DataStream API: `StreamJob WORKLOAD EVENTS BACKEND CHECKPOINT_MS MANAGED_MEMORY FOLDER`. */
public final class StreamJob {
    private StreamJob() {}

    public static class Event {
        public long key, amount, ts;

        public Event() {}
    }

    /** Count and sum. */
    public static class Counting implements AggregateFunction<Event, long[], long[]> {
        public long[] createAccumulator() {
            return new long[2];
        }

        public long[] add(Event event, long[] sums) {
            sums[0]++;
            sums[1] += event.amount;
            return sums;
        }

        public long[] getResult(long[] sums) {
            return sums;
        }

        public long[] merge(long[] x, long[] y) {
            x[0] += y[0];
            x[1] += y[1];
            return x;
        }
    }

    /** A window's key and end beside its sums. */
    public static class Named extends ProcessWindowFunction<long[], long[], Long, TimeWindow> {
        public void process(Long key, Context context, Iterable<long[]> in, Collector<long[]> out) {
            long[] sums = in.iterator().next();
            out.collect(new long[] {key, context.window().getEnd(), sums[0], sums[1]});
        }
    }

    /** Count and sum of a key after every event. */
    public static class Running extends KeyedProcessFunction<Long, Event, long[]> {
        private transient ValueState<long[]> state;

        public void open(OpenContext context) {
            state = getRuntimeContext().getState(
                new ValueStateDescriptor<>("sums", PrimitiveArrayTypeInfo.LONG_PRIMITIVE_ARRAY_TYPE_INFO));
        }

        public void processElement(Event event, Context context, Collector<long[]> out) throws Exception {
            long[] old = state.value();
            long[] sums = old == null
                ? new long[] {1, event.amount} : new long[] {old[0] + 1, old[1] + event.amount};
            state.update(sums);
            out.collect(new long[] {event.key, sums[0], sums[1], sums[0]});
        }
    }

    /** Adds rows up. */
    public static class SumsSink implements Sink<long[]> {
        private final long events, unit;

        SumsSink(long events, long unit) {
            this.events = events;
            this.unit = unit;
        }

        public SinkWriter<long[]> createWriter(WriterInitContext context) {
            Sums sums = unit > 0 ? Sums.ofWindows(events, unit) : Sums.ofRows();
            return new SinkWriter<long[]>() {
                public void write(long[] row, Context ignored) {
                    sums.add(row[0], row[1], row[2], row[3]);
                }

                public void flush(boolean endOfInput) {
                    sums.push();
                }

                public void close() {
                    sums.push();
                }
            };
        }
    }

    public static void main(String[] words) throws Exception {
        String workload = words[0];
        long events = Long.parseLong(words[1]);
        long keys = workload.startsWith("w2") ? 1_000_000 : 100_000;
        StreamExecutionEnvironment env = Settings.environment(words);
        DataStream<Event> source = env.fromSource(
            new DataGeneratorSource<>(number -> event(number, events, keys), events, TypeInformation.of(Event.class)),
            WatermarkStrategy.<Event>forBoundedOutOfOrderness(Duration.ofSeconds(5))
                .withTimestampAssigner((event, ignored) -> event.ts),
            "events");
        long unit = workload.equals("w1") ? 10_000 : workload.equals("w1s") ? 1_000 : 0;
        DataStream<long[]> out;
        if (unit > 0) {
            Duration size = Duration.ofSeconds(10);
            WindowedStream<Event, Long, TimeWindow> windows = source.keyBy(event -> event.key).window(
                unit == 10_000 ? TumblingEventTimeWindows.of(size)
                    : SlidingEventTimeWindows.of(size, Duration.ofSeconds(1)));
            out = windows.aggregate(new Counting(), new Named());
        } else if (workload.startsWith("w2")) {
            out = source.keyBy(event -> event.key).process(new Running());
        } else if (workload.equals("w3")) {
            out = source.filter(event -> event.key % 4 != 0).map(event -> {
                long net = event.amount * 908 / 1000;
                return new long[] {event.key, event.ts - Sums.T0, net, net};
            });
        } else {
            throw new IllegalArgumentException("no workload " + workload);
        }
        out.sinkTo(new SumsSink(events, unit));
        env.execute(workload);
        Sums.print();
        System.exit(0);
    }

    private static Event event(long number, long events, long keys) {
        Sums.read();
        long i = Events.inTurn(number, events), a = Events.a(i), c = Events.c(a);
        Event event = new Event();
        event.key = Events.key(a, keys);
        event.amount = Events.amount(c);
        event.ts = Events.time(i, c);
        return event;
    }
}
