package peers;

import java.util.Arrays;
import java.util.Set;
import java.util.stream.IntStream;
import org.apache.flink.api.connector.sink2.Sink;
import org.apache.flink.api.connector.sink2.SinkWriter;
import org.apache.flink.api.connector.sink2.WriterInitContext;
import org.apache.flink.configuration.ConfigOption;
import org.apache.flink.configuration.ConfigOptions;
import org.apache.flink.connector.datagen.source.DataGeneratorSource;
import org.apache.flink.connector.datagen.source.GeneratorFunction;
import org.apache.flink.table.connector.ChangelogMode;
import org.apache.flink.table.connector.sink.DynamicTableSink;
import org.apache.flink.table.connector.sink.SinkV2Provider;
import org.apache.flink.table.connector.source.DynamicTableSource;
import org.apache.flink.table.connector.source.ScanTableSource;
import org.apache.flink.table.connector.source.SourceProvider;
import org.apache.flink.table.connector.source.abilities.SupportsProjectionPushDown;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.TimestampData;
import org.apache.flink.table.factories.DynamicTableSinkFactory;
import org.apache.flink.table.factories.DynamicTableSourceFactory;
import org.apache.flink.table.factories.FactoryUtil;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.table.types.DataType;
import org.apache.flink.table.types.logical.DecimalType;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.table.types.logical.RowType;
import org.apache.flink.table.types.logical.utils.LogicalTypeChecks;
import org.apache.flink.types.RowKind;

/** Sources and a sink for Flink SQL which work on its own rows, so that nothing is converted for the measurement's sake. */
public final class Tables {
    private static final ConfigOption<Long> EVENTS = ConfigOptions.key("events").longType().noDefaultValue();
    private static final ConfigOption<Long> KEYS = ConfigOptions.key("keys").longType().defaultValue(100_000L);
    private static final ConfigOption<Boolean> WHOLE = ConfigOptions.key("whole").booleanType().defaultValue(false);
    private static final ConfigOption<Long> UNIT = ConfigOptions.key("unit").longType().defaultValue(0L);

    private Tables() {}

    /** `peers-events`: user, amount, time. */
    public static class EventsFactory implements DynamicTableSourceFactory {
        public String factoryIdentifier() {
            return "peers-events";
        }

        public Set<ConfigOption<?>> requiredOptions() {
            return Set.of(EVENTS);
        }

        public Set<ConfigOption<?>> optionalOptions() {
            return Set.of(KEYS);
        }

        public DynamicTableSource createDynamicTableSource(Context context) {
            FactoryUtil.TableFactoryHelper helper = FactoryUtil.createTableFactoryHelper(this, context);
            long events = helper.getOptions().get(EVENTS), keys = helper.getOptions().get(KEYS);
            return new Made(events, context.getPhysicalRowDataType(), number -> {
                Sums.read();
                long i = Events.inTurn(number, events), a = Events.a(i), c = Events.c(a);
                return GenericRowData.of(
                    Events.key(a, keys), Events.amount(c), TimestampData.fromEpochMillis(Events.time(i, c)));
            });
        }
    }

    /** `peers-bids`: Nexmark's bids, of which only the columns asked for are made unless `whole`. */
    public static class BidsFactory implements DynamicTableSourceFactory {
        public String factoryIdentifier() {
            return "peers-bids";
        }

        public Set<ConfigOption<?>> requiredOptions() {
            return Set.of(EVENTS);
        }

        public Set<ConfigOption<?>> optionalOptions() {
            return Set.of(WHOLE);
        }

        public DynamicTableSource createDynamicTableSource(Context context) {
            FactoryUtil.TableFactoryHelper helper = FactoryUtil.createTableFactoryHelper(this, context);
            long events = helper.getOptions().get(EVENTS);
            int[] all = IntStream.range(0, 7).toArray();
            DataType type = context.getPhysicalRowDataType();
            return helper.getOptions().get(WHOLE) ? ofBids(events, all, type) : new Chosen(events, all, type);
        }
    }

    private static Made ofBids(long events, int[] columns, DataType type) {
        Bids bids = new Bids(events, columns);
        return new Made(bids.count(), type, bids::bid);
    }

    private static class Made implements ScanTableSource {
        private final long count;
        private final DataType type;
        private final GeneratorFunction<Long, RowData> make;

        Made(long count, DataType type, GeneratorFunction<Long, RowData> make) {
            this.count = count;
            this.type = type;
            this.make = make;
        }

        public ChangelogMode getChangelogMode() {
            return ChangelogMode.insertOnly();
        }

        public ScanRuntimeProvider getScanRuntimeProvider(ScanContext context) {
            InternalTypeInfo<RowData> rows = InternalTypeInfo.of((RowType) type.getLogicalType());
            return SourceProvider.of(new DataGeneratorSource<>(make, count, rows));
        }

        public DynamicTableSource copy() {
            return new Made(count, type, make);
        }

        public String asSummaryString() {
            return "peers";
        }
    }

    private static class Chosen implements ScanTableSource, SupportsProjectionPushDown {
        private final long events;
        private int[] columns;
        private DataType type;

        Chosen(long events, int[] columns, DataType type) {
            this.events = events;
            this.columns = columns;
            this.type = type;
        }

        public boolean supportsNestedProjection() {
            return false;
        }

        public void applyProjection(int[][] fields, DataType produced) {
            int[] before = columns;
            columns = Arrays.stream(fields).mapToInt(field -> before[field[0]]).toArray();
            type = produced;
        }

        public ChangelogMode getChangelogMode() {
            return ChangelogMode.insertOnly();
        }

        public ScanRuntimeProvider getScanRuntimeProvider(ScanContext context) {
            return ofBids(events, columns, type).getScanRuntimeProvider(context);
        }

        public DynamicTableSource copy() {
            return new Chosen(events, columns, type);
        }

        public String asSummaryString() {
            return "peers";
        }
    }

    /** `peers-sums`: adds up the first four columns and throws the rest away; upserts where the table has a key. */
    public static class SumsFactory implements DynamicTableSinkFactory {
        public String factoryIdentifier() {
            return "peers-sums";
        }

        public Set<ConfigOption<?>> requiredOptions() {
            return Set.of(EVENTS);
        }

        public Set<ConfigOption<?>> optionalOptions() {
            return Set.of(UNIT);
        }

        public DynamicTableSink createDynamicTableSink(Context context) {
            FactoryUtil.TableFactoryHelper helper = FactoryUtil.createTableFactoryHelper(this, context);
            boolean upserts = context.getCatalogTable().getResolvedSchema().getPrimaryKey().isPresent();
            DataType type = context.getPhysicalRowDataType();
            return new Added(helper.getOptions().get(EVENTS), helper.getOptions().get(UNIT), upserts, type);
        }
    }

    private static class Added implements DynamicTableSink {
        private final long events, unit;
        private final boolean upserts;
        private final DataType type;

        Added(long events, long unit, boolean upserts, DataType type) {
            this.events = events;
            this.unit = unit;
            this.upserts = upserts;
            this.type = type;
        }

        public ChangelogMode getChangelogMode(ChangelogMode requested) {
            return upserts ? ChangelogMode.upsert() : ChangelogMode.insertOnly();
        }

        public SinkRuntimeProvider getSinkRuntimeProvider(Context context) {
            LogicalType[] types = type.getLogicalType().getChildren().toArray(new LogicalType[0]);
            return SinkV2Provider.of(new Rows(events, unit, Arrays.copyOf(types, 4)));
        }

        public DynamicTableSink copy() {
            return new Added(events, unit, upserts, type);
        }

        public String asSummaryString() {
            return "peers";
        }
    }

    /** Times count in ms since T0 as the second column, in ms as a window's end, in us as the last. */
    public static class Rows implements Sink<RowData> {
        private final long events, unit;
        private final LogicalType[] types;

        Rows(long events, long unit, LogicalType[] types) {
            this.events = events;
            this.unit = unit;
            this.types = types;
        }

        public SinkWriter<RowData> createWriter(WriterInitContext context) {
            Sums sums = unit > 0 ? Sums.ofWindows(events, unit) : Sums.ofRows();
            return new SinkWriter<RowData>() {
                public void write(RowData row, Context ignored) {
                    if (row.getRowKind() == RowKind.DELETE || row.getRowKind() == RowKind.UPDATE_BEFORE) return;
                    sums.add(value(row, 0), value(row, 1), value(row, 2), value(row, 3));
                }

                public void flush(boolean endOfInput) {
                    sums.push();
                }

                public void close() {
                    sums.push();
                }
            };
        }

        private long value(RowData row, int place) {
            switch (types[place].getTypeRoot()) {
                case TIMESTAMP_WITHOUT_TIME_ZONE:
                case TIMESTAMP_WITH_LOCAL_TIME_ZONE:
                    long ms = row.getTimestamp(place, LogicalTypeChecks.getPrecision(types[place])).getMillisecond();
                    return place == 3 ? ms * 1000 : unit > 0 ? ms : ms - Sums.T0;
                case DECIMAL:
                    DecimalType decimal = (DecimalType) types[place];
                    return row.getDecimal(place, decimal.getPrecision(), decimal.getScale()).toUnscaledLong();
                default:
                    return row.getLong(place);
            }
        }
    }
}
