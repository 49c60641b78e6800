package peers;

import java.io.Serializable;
import java.nio.charset.StandardCharsets;
import java.util.zip.CRC32;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.StringData;
import org.apache.flink.table.data.TimestampData;

/** Bids as `penstock_connectors.nexmark` makes them: every column a function of the event's number. */
final class Bids implements Serializable {
    static final String COLUMNS = "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, "
        + "`dateTime` TIMESTAMP(3), extra STRING";
    private static final long RATE = 100_000, FIRST_ID = 1000, LEAD = 10, HOT_BATCH = 100, ACTIVE = 1000, IN_FLIGHT = 100;
    private static final int EPOCH = 50, BEFORE = 4, SHARE = 46, POOL = 1 << 20, CHANNELS = 10_000;
    private static final String[] HOT = {"Google", "Facebook", "Baidu", "Apple"};
    private static final long AUCTION = salt("auction"), BIDDER = salt("bidder"), PRICE = salt("price"),
        CHANNEL = salt("channel"), EXTRA = salt("extra");
    private static final double[] CURVE = new double[4097];
    private static final byte[] LETTERS = new byte[POOL];
    private static final StringData[] NAMES = new StringData[HOT.length + CHANNELS], URLS = new StringData[NAMES.length];

    static {
        for (int i = 0; i < CURVE.length; i++) CURVE[i] = 100.0 * Math.pow(10.0, 6.0 * i / 4096);
        long salt = salt("letters");
        for (int i = 0; i < POOL; i++) LETTERS[i] = (byte) (97 + low(draw(i, salt), 26));
        for (int i = 0; i < NAMES.length; i++) {
            StringBuilder url = new StringBuilder("https://www.nexmark.com/");
            for (int k = 0; k < 3; k++) url.append(text(15 * i + 5 * k, 3 + (i + k) % 3)).append('/');
            url.append("item.htm?query=1");
            int number = i - HOT.length;
            if (number >= 0 && number % 10 != 0) url.append("&channel_id=").append(Integer.reverse(number) & 0x7FFFFFFF);
            NAMES[i] = StringData.fromString(number < 0 ? HOT[i] : "channel-" + number);
            URLS[i] = StringData.fromString(url.toString());
        }
    }

    private final long bids;
    private final int[] columns;

    /** Bids among so many events, with these of the columns. */
    Bids(long events, int[] columns) {
        this.bids = events / EPOCH * SHARE + Math.min(Math.max(events % EPOCH - BEFORE, 0), SHARE);
        this.columns = columns;
    }

    long count() {
        return bids;
    }

    RowData bid(long number) {
        Sums.read();
        long bid = Events.inTurn(number, bids), event = bid / SHARE * EPOCH + BEFORE + bid % SHARE;
        GenericRowData made = new GenericRowData(columns.length);
        for (int i = 0; i < columns.length; i++) made.setField(i, column(columns[i], event));
        return made;
    }

    private static Object column(int column, long event) {
        switch (column) {
            case 0: return auction(event);
            case 1: return bidder(event);
            case 2: return price(event);
            case 3: return NAMES[channel(event)];
            case 4: return URLS[channel(event)];
            case 5: return TimestampData.fromEpochMillis(Sums.T0 + event * 1000 / RATE);
            default: return extra(event);
        }
    }

    private static long auction(long event) {
        long last = event / EPOCH * 3 + 2, bits = draw(event, AUCTION), least = Math.max(last - IN_FLIGHT, 0);
        return FIRST_ID + (low(bits, 2) > 0 ? last / HOT_BATCH * HOT_BATCH : least + high(bits, last - least + 1 + LEAD));
    }

    private static long bidder(long event) {
        long last = event / EPOCH, bits = draw(event, BIDDER), near = Math.min(last + 1, ACTIVE);
        return FIRST_ID
            + (low(bits, 4) > 0 ? last / HOT_BATCH * HOT_BATCH + 1 : last + 1 - near + high(bits, near + LEAD));
    }

    private static long price(long event) {
        long bits = (draw(event, PRICE) >>> 12) * 4096;
        int at = (int) (bits >>> 52);
        double part = (bits & ((1L << 52) - 1)) / 4503599627370496.0;
        return (long) (CURVE[at] + (CURVE[at + 1] - CURVE[at]) * part + 0.5);
    }

    private static int channel(long event) {
        long bits = draw(event, CHANNEL);
        return (int) ((bits & 1) == 1 ? high(bits, HOT.length) : HOT.length + high(bits, CHANNELS));
    }

    private static StringData extra(long event) {
        long bits = draw(event, EXTRA);
        int size = (int) (54 + low(bits, 28));
        return StringData.fromBytes(LETTERS, (int) high(bits, POOL - size), size);
    }

    private static String text(int at, int size) {
        return new String(LETTERS, at, size, StandardCharsets.US_ASCII);
    }

    private static long draw(long number, long salt) {
        long mixed = number + salt;
        mixed = (mixed ^ (mixed >>> 30)) * 0xBF58476D1CE4E5B9L;
        mixed = (mixed ^ (mixed >>> 27)) * 0x94D049BB133111EBL;
        return mixed ^ (mixed >>> 31);
    }

    private static long low(long bits, long bound) {
        return ((bits & 0xFFFFFFFFL) * bound) >>> 32;
    }

    private static long high(long bits, long bound) {
        return ((bits >>> 32) * bound) >>> 32;
    }

    private static long salt(String field) {
        CRC32 crc = new CRC32();
        crc.update(field.getBytes(StandardCharsets.US_ASCII));
        return crc.getValue() * 0xD1B54A32D192ED03L & Long.MAX_VALUE;
    }
}
