"""The queue of an asynchronous function, against a list of everything that went in."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.elements import Watermark
from penstock.operators.rows.async_queue import AsyncQueue

BATCH = pa.record_batch([pa.array(range(100))], names=["v"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("rows"), st.integers(0, 5)),
        st.tuples(st.just("mark"), st.just(0)),
        st.tuples(st.just("done"), st.integers(0, 20)),
        st.tuples(st.just("take"), st.just(0)),
    ),
    max_size=60,
)


@given(STEPS, st.integers(1, 4), st.booleans())
def test_rows_keep_their_order_or_at_least_their_side_of_every_mark(steps, capacity, ordered):
    queue, came, running, done, out, number = AsyncQueue(capacity, ordered=ordered), [], [], [], [], 0

    def begin():
        running.extend(queue.start())
        assert len(running) == queue.running <= capacity

    def take():
        for part in queue.take():
            out.extend([part] if isinstance(part, Watermark) else [entry.row for entry in part])
            assert isinstance(part, Watermark) or all(entry.result == -entry.row for entry in part)

    def end(place):
        entry = running.pop(place % len(running))
        queue.complete(entry, -entry.row)
        done.append(entry.row)
        begin()

    for step, value in steps:
        if step == "rows":
            came.extend(range(number, number + value))
            queue.add(BATCH, iter(range(number, number + value)))
            number += value
            begin()
        elif step == "mark":
            came.append(Watermark(len(came)))
            queue.mark(came[-1])
        elif step == "done" and running:
            end(value)
        elif step == "take":
            take()
            emitted = [row for row in out if not isinstance(row, Watermark)]
            assert [entry.row for entry in queue.unemitted()] == sorted(set(range(number)) - set(emitted))
            assert set(emitted) <= set(done)
            assert running or not queue.full, "something will end that"
            if not ordered:
                opened = [row for row in range(number) if row not in done]
                mark = (
                    next((e for e in came[came.index(opened[0]) :] if isinstance(e, Watermark)), None)
                    if opened
                    else None
                )
                free = came if mark is None else came[: came.index(mark)]
                assert {row for row in free if not isinstance(row, Watermark) and row in done} <= set(emitted), (
                    "nothing waits in vain"
                )
        unemitted = number - sum(not isinstance(row, Watermark) for row in out)
        assert queue.full == (unemitted >= capacity)
    while running:
        end(0)
    take()
    assert queue.empty
    if ordered:
        assert out == came
    else:
        assert sorted(map(repr, out)) == sorted(map(repr, came))
        for place, element in enumerate(came):
            if isinstance(element, Watermark):
                assert {r for r in out[: out.index(element)] if not isinstance(r, Watermark)} == {
                    r for r in came[:place] if not isinstance(r, Watermark)
                }
