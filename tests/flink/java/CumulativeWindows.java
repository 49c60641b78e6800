import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import org.apache.flink.api.common.ExecutionConfig;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.streaming.api.windowing.assigners.WindowAssigner;
import org.apache.flink.streaming.api.windowing.triggers.EventTimeTrigger;
import org.apache.flink.streaming.api.windowing.triggers.Trigger;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;

/** Windows that begin together and end one step after the other: Flink's SQL has them, its DataStream API has not. */
public class CumulativeWindows extends WindowAssigner<Object, TimeWindow> {
    private final long step;
    private final long size;

    public CumulativeWindows(int stepSeconds, int sizeSeconds) {
        step = stepSeconds * 1000L;
        size = sizeSeconds * 1000L;
    }

    @Override
    public Collection<TimeWindow> assignWindows(Object row, long timestamp, WindowAssignerContext context) {
        long start = TimeWindow.getWindowStartWithOffset(timestamp, 0, size);
        List<TimeWindow> windows = new ArrayList<>();
        for (long end = start + step; end <= start + size; end += step) {
            if (timestamp < end) {
                windows.add(new TimeWindow(start, end));
            }
        }
        return windows;
    }

    @Override
    public Trigger<Object, TimeWindow> getDefaultTrigger() {
        return EventTimeTrigger.create();
    }

    @Override
    public TypeSerializer<TimeWindow> getWindowSerializer(ExecutionConfig config) {
        return new TimeWindow.Serializer();
    }

    @Override
    public boolean isEventTime() {
        return true;
    }
}
