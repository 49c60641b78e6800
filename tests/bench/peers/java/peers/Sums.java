package peers;

import java.util.concurrent.atomic.LongAdder;

/** The answer of a run as four numbers, whatever the order of its rows; and the moments of its first event and last result. */
final class Sums {
    static final long T0 = 1_700_000_000_000L, PRIME = 1_000_000_007L;
    private static final LongAdder[] TOTAL = {new LongAdder(), new LongAdder(), new LongAdder(), new LongAdder()};
    private static volatile long firstIn, lastOut;

    private final boolean windows;
    private final long unit, cut;
    private final long[] mine = new long[4];

    /** One writer's part; of windows those that end by {@code cut} count, {@code unit} ms apart. */
    Sums(boolean windows, long unit, long cut) {
        this.windows = windows;
        this.unit = unit;
        this.cut = cut;
    }

    static Sums ofWindows(long events, long unit) {
        return new Sums(true, unit, lastSureWindow(events, unit));
    }

    static Sums ofRows() {
        return new Sums(false, 1, Long.MAX_VALUE);
    }

    static long lastSureWindow(long events, long unit) {
        return (T0 + (events - 1) / 100 - 5050) / unit * unit;
    }

    /** Windows: key, end, count, sum. Rows: key, two numbers that are summed, one that is mixed with the key. */
    void add(long key, long a, long b, long c) {
        if (windows) {
            if (a > cut) return;
            mine[0]++;
            mine[1] += b;
            mine[2] += c;
            mine[3] += Math.floorMod((key * 31 + (a - T0) / unit * 17 + b) * (c + 7), PRIME);
        } else {
            mine[0]++;
            mine[1] += a;
            mine[2] += b;
            mine[3] += (key * 31 + c) % PRIME;
        }
    }

    void push() {
        for (int i = 0; i < 4; i++) {
            TOTAL[i].add(mine[i]);
            mine[i] = 0;
        }
        lastOut = System.currentTimeMillis();
    }

    static void read() {
        if (firstIn == 0) firstIn = System.currentTimeMillis();
    }

    /** One line for the program that measures. */
    static void print() {
        StringBuilder sums = new StringBuilder();
        for (LongAdder adder : TOTAL) sums.append(sums.length() == 0 ? "" : ":").append(adder.sum());
        System.out.println("BENCH {\"t_start\": " + firstIn / 1000.0 + ", \"t_end\": " + lastOut / 1000.0
            + ", \"checksum\": \"" + sums + "\"}");
    }
}
