package peers;

import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.util.Collection;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.TimeUnit;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.MapFunction;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.PrimitiveArrayTypeInfo;
import org.apache.flink.api.connector.source.SourceReader;
import org.apache.flink.api.connector.source.SourceReaderContext;
import org.apache.flink.api.connector.source.SplitEnumerator;
import org.apache.flink.api.connector.source.SplitEnumeratorContext;
import org.apache.flink.api.connector.source.lib.NumberSequenceSource;
import org.apache.flink.api.connector.source.lib.NumberSequenceSource.NumberSequenceSplit;
import org.apache.flink.api.connector.source.lib.util.IteratorSourceEnumerator;
import org.apache.flink.api.connector.source.lib.util.IteratorSourceReader;
import org.apache.flink.api.connector.source.util.ratelimit.RateLimitedSourceReader;
import org.apache.flink.api.connector.source.util.ratelimit.RateLimiter;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.util.Collector;

/**
 * A running count and SUMS sums by key, with all keys made first: `RescaleJob FOLDER KEYS ROWS_PER_SECOND SUMS`.
 *
 * <p>FOLDER/filled-SPLIT is made with a split's last new key; FOLDER/seen gets the times of rows out of the aggregate.
 */
public final class RescaleJob {
    /** As many as the largest parallelism, so that each subtask reads. */
    private static final int SPLITS = 4;
    /** Splits that begin with new keys: as many as the first parallelism. */
    private static final int FILLING = 2;
    private static final int SPLIT_BITS = 40;
    private static final long IN_SPLIT = (1L << SPLIT_BITS) - 1;

    private RescaleJob() {}

    /** The numbers of all rows, the splits that fill first. */
    public static class Numbers extends NumberSequenceSource {
        private final long keys, rate;

        Numbers(long keys, long rate) {
            super(0, ((long) SPLITS << SPLIT_BITS) - 1);
            this.keys = keys;
            this.rate = rate;
        }

        @Override
        public SplitEnumerator<NumberSequenceSplit, Collection<NumberSequenceSplit>> createEnumerator(
                SplitEnumeratorContext<NumberSequenceSplit> context) {
            return new IteratorSourceEnumerator<>(context, splitNumberRange(getFrom(), getTo(), SPLITS));
        }

        @Override
        public SourceReader<Long, NumberSequenceSplit> createReader(SourceReaderContext context) {
            Pace pace = new Pace(keys / FILLING, (double) rate / context.currentParallelism());
            return new RateLimitedSourceReader<>(new IteratorSourceReader<>(context), pace) {
                @Override
                public void addSplits(List<NumberSequenceSplit> splits) {
                    splits.forEach(pace::notifyAddingSplit); // Flink 2.3's reader does not call it
                    super.addSplits(splits);
                }
            };
        }
    }

    /** Lets new keys pass at full speed, then so many rows a second. */
    private static class Pace implements RateLimiter<NumberSequenceSplit> {
        private static final long PAUSE_NS = 5_000_000;
        private static final CompletableFuture<Void> NOW = CompletableFuture.completedFuture(null);
        private final long share;
        private final double nanoseconds;
        private long filling, passed, since;

        Pace(long share, double rate) {
            this.share = share;
            this.nanoseconds = 1e9 / rate;
        }

        @Override
        public void notifyAddingSplit(NumberSequenceSplit split) {
            if (split.from() >> SPLIT_BITS < FILLING) filling += Math.max(0, share - (split.from() & IN_SPLIT));
        }

        @Override
        public CompletionStage<Void> acquire(int rows) {
            if (filling > 0) {
                filling -= rows;
                since = 0;
                return NOW;
            }
            if (since == 0) {
                since = System.nanoTime();
                passed = 0;
            }
            long early = since + (long) (passed * nanoseconds) - System.nanoTime();
            passed += rows;
            if (early <= 0) return NOW;
            return new CompletableFuture<Void>().completeOnTimeout(null, early + PAUSE_NS, TimeUnit.NANOSECONDS);
        }
    }

    /** Key, amount, and for a new key the count that it begins with; its sums begin with numbers of 60 bits. */
    public static class Orders implements MapFunction<Long, long[]> {
        private final String folder;
        private final long keys;

        Orders(String folder, long keys) {
            this.folder = folder;
            this.keys = keys;
        }

        @Override
        public long[] map(Long number) throws IOException {
            long split = number >> SPLIT_BITS, inSplit = number & IN_SPLIT, share = keys / FILLING;
            if (split < FILLING && inSplit < share) {
                if (inSplit == share - 1) new File(folder, "filled-" + split).createNewFile();
                long key = inSplit * FILLING + split;
                return new long[] {key, mixed(key, 3) >>> 24, key % 50 + 1};
            }
            return new long[] {(mixed(number, 1) >>> 1) % keys, (mixed(number, 2) >>> 1) % 100 + 1, 0};
        }

        static long mixed(long number, long field) {
            long z = number + field * 0xD1B54A32D192ED03L;
            z = (z ^ (z >>> 30)) * 0xBF58476D1CE4E5B9L;
            z = (z ^ (z >>> 27)) * 0x94D049BB133111EBL;
            return z ^ (z >>> 31);
        }
    }

    /** Count and sums of a key after every order. */
    public static class Running extends KeyedProcessFunction<Long, long[], long[]> {
        private static final int FIELD = 4, UNUSED_BITS = 4;
        private final int width;
        private transient ValueState<long[]> state;

        Running(int sums) {
            this.width = 1 + sums;
        }

        @Override
        public void open(OpenContext context) {
            state = getRuntimeContext().getState(
                new ValueStateDescriptor<>("sums", PrimitiveArrayTypeInfo.LONG_PRIMITIVE_ARRAY_TYPE_INFO));
        }

        @Override
        public void processElement(long[] order, Context context, Collector<long[]> out) throws Exception {
            long[] sums = order[2] > 0 ? null : state.value();
            if (sums == null) sums = new long[width]; // a new key, or the other split has not made it yet
            sums[0] += Math.max(1, order[2]);
            for (int i = 1; i < width; i++) {
                sums[i] += order[2] > 0 ? Orders.mixed(order[0], FIELD + i) >>> UNUSED_BITS : order[1];
            }
            state.update(sums);
            out.collect(sums);
        }
    }

    /** Appends the time to a file with each row, at most every 5 ms. */
    public static class Seen extends RichMapFunction<long[], long[]> {
        private static final long STEP_MS = 5;
        private final String folder;
        private transient FileOutputStream file;
        private transient long last;

        Seen(String folder) {
            this.folder = folder;
        }

        @Override
        public void open(OpenContext context) throws IOException {
            file = new FileOutputStream(new File(folder, "seen"), true);
        }

        @Override
        public long[] map(long[] row) throws IOException {
            long now = System.currentTimeMillis();
            if (now - last >= STEP_MS) {
                file.write((now / 1000.0 + "\n").getBytes());
                last = now;
            }
            return row;
        }

        @Override
        public void close() throws IOException {
            if (file != null) file.close();
        }
    }

    public static void main(String[] words) throws Exception {
        String folder = words[0];
        long keys = Long.parseLong(words[1]), rate = Long.parseLong(words[2]);
        int sums = Integer.parseInt(words[3]);
        StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment();
        env.fromSource(new Numbers(keys, rate), WatermarkStrategy.noWatermarks(), "orders").uid("orders")
            .map(new Orders(folder, keys)).uid("rows")
            .keyBy(row -> row[0]).process(new Running(sums)).uid("totals")
            .map(new Seen(folder)).uid("seen")
            .sinkTo(new DiscardingSink<>()).uid("none");
        env.execute("rescale");
    }
}
