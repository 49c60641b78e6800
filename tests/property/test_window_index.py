"""The windows of a key found by time and by what they touch, against looking at all of them."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.eventtime.windows import TimeWindow
from penstock.operators.windows.window_assigners import WindowAssigner
from penstock.operators.windows.window_buffer import BufferedWindow, WindowIndex

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("row"), st.integers(0, 200)),
        st.tuples(st.just("wait"), st.integers(0, 30), st.integers(0, 250), st.booleans()),
        st.tuples(st.just("no longer"), st.integers(0, 30), st.integers(0, 30)),
        st.tuples(st.just("due"), st.integers(0, 250), st.booleans()),
        st.tuples(st.just("restore")),
    ),
    max_size=60,
)


@given(gap=st.integers(1, 12), lateness=st.integers(0, 20), steps=STEPS)
def test_sessions_are_found_as_if_all_were_looked_at(gap, lateness, steps):
    assigner = WindowAssigner({"kind": "session", "gap_us": gap}, lateness)
    index = WindowIndex(assigner)
    for name, *numbers in steps:
        if name == "row":
            window = TimeWindow(numbers[0], numbers[0] + gap)
            overlapping = sorted(w for w in index if w.start <= window.end and w.end >= window.start)
            assert index.overlapping(window) == overlapping
            known = BufferedWindow()
            for old in overlapping:
                known.event |= index.take(old).event
            index.put(TimeWindow(min([window, *overlapping]).start, max(w.end for w in [window, *overlapping])), known)
        elif name == "wait" and index:
            window = sorted(index)[numbers[0] % len(index)]
            (index[window].processing if numbers[2] else index[window].event).add(numbers[1])
            index.wait(numbers[1], window, processing=numbers[2])
        elif name == "no longer" and index:
            window = sorted(index)[numbers[0] % len(index)]
            times = sorted([(t, False) for t in index[window].event] + [(t, True) for t in index[window].processing])
            if times:
                time, processing = times[numbers[1] % len(times)]
                (index[window].processing if processing else index[window].event).discard(time)
                index.cancel(time, window, processing=processing)
        elif name == "due":
            time, processing = numbers
            waiting = {w for w, known in index.items() if time in (known.processing if processing else known.event)}
            ended = set() if processing else {w for w in index if assigner.cleanup_time(w) == time}
            assert index.due(time, processing=processing) == sorted(waiting | ended)
            for window in waiting:
                (index[window].processing if processing else index[window].event).discard(time)
            for window in ended:
                index.take(window)
        elif name == "restore":
            index = WindowIndex(assigner, dict(index))
