package peers;

/** Event i of the workloads; `penstock.bench.reference` has the same formula. */
final class Events {
    private static final long M = 0xFFFFFFFFL;

    private Events() {}

    static long a(long i) {
        return (i * 2654435761L) & M;
    }

    static long key(long a, long keys) {
        return ((((a + (a >>> 15)) & M) * 1540483477L & M) >>> 4) % keys;
    }

    static long c(long a) {
        return ((a + (a >>> 13)) & M) * 1103515245L & M;
    }

    static long amount(long c) {
        return 1 + (c >>> 20) % 1000;
    }

    static long time(long i, long c) {
        return Sums.T0 + i / 100 - (c >>> 4) % 5000;
    }

    /** Two source subtasks have half of the numbers each; they take the events in turn, so that time goes on alike. */
    static long inTurn(long number, long events) {
        long half = (events + 1) / 2;
        return number < half ? 2 * number : 2 * (number - half) + 1;
    }
}
