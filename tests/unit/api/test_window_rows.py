"""Triggers, evictors and functions of windows: what they compute, and what is refused."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import NamedTuple

import polars as pl
import pyarrow as pa
import pytest
from tests.support.sizes import sizes

import penstock as ps
from penstock.config.settings import JobSettings
from penstock.core.clock import ManualClock
from penstock.core.elements import MAX_TIMESTAMP, Batch, Watermark
from penstock.core.keygroup import ALL_HASHES
from penstock.core.schema import schema_from_text
from penstock.operators.operator import OperatorMetrics
from penstock.operators.registry import create_operator
from penstock.state.memory.budget import MemoryBudget
from penstock.state.state_backend import KeyedStateRequest
from penstock.state.store import open_keyed_state


class Out(NamedTuple):
    user_id: int
    text: str


class Sums(ps.ProcessWindowFunction):
    def process(self, key, ctx, rows) -> Iterator[Out]:
        ctx.window_state["times"] = ctx.window_state.get("times", 0) + 1
        yield Out(key, f"{ctx.window.start}: {sum(row.amount for row in rows)}, {ctx.window_state['times']}")

    def clear(self, ctx):
        ctx.side("over", Out(ctx.key, f"{ctx.window.start}"))


@pytest.fixture
def keyed(orders):
    return orders.key_by("user_id")


class Recorder:
    def __init__(self):
        self.rows, self.sides = [], {}

    def batch(self, batch):
        batch.data.validate(full=True)
        self.rows += [tuple(row.values()) for row in batch.data.to_pylist()]

    def side(self, tag, batch):
        self.sides.setdefault(tag, []).extend(tuple(row.values()) for row in batch.data.to_pylist())

    def watermark(self, watermark):
        pass


@pytest.fixture
def start(env, tmp_path):
    """Open the operator behind a stream; `feed` takes (user, amount, seconds)."""

    def start(stream):
        spec = env.builder.node(stream.flow.upstreams[0].node).operator
        schema = schema_from_text(env.builder._edges[-1].schema)
        request = KeyedStateRequest(
            uid="w",
            snapshots=(),
            hash_range=ALL_HASHES,
            settings=JobSettings(),
            read=lambda file: b"",
            directory=tmp_path,
            writer="w",
            budget=MemoryBudget(1 << 30),
            limits=sizes(),
        )
        operator, clock, out = create_operator(spec.kind), ManualClock(), Recorder()
        operator.open(
            SimpleNamespace(
                spec=spec,
                hash_range=ALL_HASHES,
                metrics=OperatorMetrics(),
                input_schemas=(schema,),
                keyed_state=open_keyed_state(request),
                limits=sizes(),
                restored=(),
                clock=clock,
                subtask=0,
                parallelism=1,
                job_name="w",
            )
        )

        def feed(*rows):
            data = [
                {"user_id": u, "amount": a, "product": None, "ts": s * 1_000_000, "__ts": s * 1_000_000}
                for u, a, s in rows
            ]
            batch = pa.RecordBatch.from_pylist(data, schema=schema)
            operator.process_batch(Batch(batch), 0, out)
            return taken()

        def taken():
            rows, out.rows = out.rows, []
            return rows

        def mark(seconds):
            operator.process_watermark(Watermark(seconds * 1_000_000 if seconds < 10**6 else seconds), out)
            return taken()

        def tick(ms):
            clock.advance(ms)
            if operator.next_timer_ms is not None and operator.next_timer_ms <= clock.now_ms():
                operator.process_time(clock.now_ms(), out)
            return taken()

        return SimpleNamespace(feed=feed, mark=mark, tick=tick, out=out, operator=operator)

    return start


def test_a_global_window_is_computed_when_its_trigger_says(keyed, start):
    counted = keyed.window(ps.Global()).trigger(ps.trigger.purging(ps.trigger.count(2)))
    stream = counted.aggregate(n=ps.count(), total=ps.sum("amount"))
    assert stream.columns == ["user_id", "n", "total"]
    job = start(stream)
    assert job.feed((1, 5, 1), (2, 7, 2), (1, 6, 3)) == [(1, 2, 11, 3_000_000)]
    assert job.feed((1, 1, 4), (2, 2, 1)) == [(2, 2, 9, 1_000_000)]
    assert job.mark(MAX_TIMESTAMP) == []


def test_aggregates_of_kept_rows_are_those_of_compiled_windows(keyed, start):
    aggregates = [ps.count(), ps.sum("amount"), ps.mean("amount"), ps.last("amount"), ps.first("amount"), ps.max("ts")]
    rows = [(u, a, s) for s in range(25) for u, a in ((1, s * s % 7), (2, -s))]
    window = keyed.window(ps.Sliding("10s", "5s"))
    kept = start(window.trigger(ps.trigger.event_time()).aggregate(*aggregates))
    kept.feed(*rows)
    expected = start(window.aggregate(*aggregates))
    data = pa.RecordBatch.from_pydict(
        {
            "user_id": [u for u, _, _ in rows],
            "amount": [a for _, a, _ in rows],
            "ts": pa.array([s * 1_000_000 for *_, s in rows]).cast(pa.timestamp("us", "UTC")),
            "__ts": [s * 1_000_000 for *_, s in rows],
        }
    )
    expected.operator.process_batch(Batch(data), 0, expected.out)
    expected.operator.process_watermark(Watermark(MAX_TIMESTAMP), expected.out)
    assert sorted(kept.mark(MAX_TIMESTAMP)) == sorted(expected.out.rows)


class Spread(ps.Aggregator[int, tuple[int, int], int]):
    def create_accumulator(self) -> tuple[int, int]:
        return 10**9, -(10**9)

    def add(self, value: int, accumulator: tuple[int, int]) -> tuple[int, int]:
        return min(value, accumulator[0]), max(value, accumulator[1])

    def get_result(self, accumulator: tuple[int, int]) -> int:
        return accumulator[1] - accumulator[0]

    def merge(self, left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int]:
        return min(left[0], right[0]), max(left[1], right[1])


class Rows(Spread):
    def add(self, value, accumulator):
        return super().add(value.amount * value.user_id, accumulator)


def test_what_needs_rows_stands_beside_what_does_not(keyed, start, env):
    """Its name, which `explain` shows, says that the window keeps its rows."""
    stream = keyed.window(ps.Session("5s")).aggregate(
        ps.count(),
        ps.collect("amount"),
        median=ps.quantile("amount", 0.5),
        kinds=ps.count_distinct("amount"),
        about=ps.approx_count_distinct("amount"),
        spread=ps.aggregating(Spread(), "amount"),
    )
    names = ["count", "collect_amount", "median", "kinds", "about", "spread"]
    assert stream.columns[3:] == names
    assert env.builder.node(stream.flow.upstreams[0].node).operator.name == "Window(session 5s, keeps rows)"
    job = start(stream)
    job.feed((1, 7, 1), (1, 5, 2), (2, 1, 1), (1, 7, 3))
    found = {row[0]: row[3:-1] for row in job.mark(100)}
    assert found == {1: (3, [7, 5, 7], 7.0, 2, 2, 2), 2: (1, [1], 1.0, 1, 1, 0)}


def test_only_the_columns_that_are_looked_at_are_kept(keyed, env):
    keyed.window(ps.Tumbling("5s")).aggregate(ps.collect("amount"))
    assert schema_from_text(env.builder._edges[-1].schema).names == ["user_id", "amount", "__ts"]
    keyed.window(ps.Tumbling("5s")).aggregate(rows=Rows())
    assert "product" in schema_from_text(env.builder._edges[-1].schema).names


def test_an_aggregate_of_ones_own_may_take_whole_rows(keyed, start):
    job = start(keyed.window(ps.Tumbling("10s")).aggregate(Rows(), spread=Rows()))
    job.feed((2, 7, 1), (2, 5, 2))
    assert [row[3:-1] for row in job.mark(100)] == [(4, 4)]


def test_reduce_of_a_keyed_stream_gives_what_there_is_after_every_row(keyed, start, order):
    stream = keyed.reduce(lambda left, right: left if left.amount >= right.amount else right, ttl="10s")
    assert stream.flow.row_type is order
    job = start(stream)
    assert [row[1] for row in job.feed((1, 5, 1), (2, 3, 1), (1, 4, 2), (1, 9, 3))] == [5, 3, 5, 9]
    job.tick(9_999)
    assert [row[1] for row in job.feed((1, 1, 4))] == [9]
    job.tick(10_000)
    assert [row[1] for row in job.feed((1, 1, 4))] == [1]
    refused(lambda: keyed.reduce(3), "not a function")


def test_reduce_of_rows_without_a_type(keyed, start):
    selected = keyed.select("user_id", "amount").key_by("user_id")
    job = start(selected.reduce(lambda left, right: left._replace(amount=left.amount + right.amount)))
    assert [row[1] for row in job.feed((1, 5, 1), (2, 3, 1), (1, 4, 2))] == [5, 3, 9]


def test_what_needs_rows_is_refused_where_there_are_none(keyed):
    tumbling = keyed.window(ps.Tumbling("10s"))
    refused(lambda: keyed.aggregate(ps.count_distinct("amount")), "needs the rows of a window")
    refused(lambda: tumbling.aggregate(ps.quantile("product", 0.5)), "takes numbers")
    refused(lambda: tumbling.aggregate(ps.quantile("amount", 1.5)), "between 0 and 1")
    refused(lambda: tumbling.aggregate(spread=Spread), "not an aggregate")
    refused(lambda: tumbling.aggregate(spread=ps.aggregating(Spread, "amount")), "no aggregator")
    whole = ps.aggregating(Rows()).where(pl.col("amount") > 1)
    refused(lambda: tumbling.aggregate(spread=whole), "takes whole rows")


def test_reduce_gives_one_row_a_window_with_the_columns_of_the_input(keyed, start, order):
    def larger(left, right):
        return left if left.amount >= right.amount else right

    stream = keyed.window(ps.Tumbling("10s")).reduce(larger)
    assert stream.flow.row_type is order
    job = start(stream)
    job.feed((1, 5, 1), (1, 9, 2), (1, 7, 3), (2, 1, 4))
    assert [(row[0], row[1], row[-1]) for row in job.mark(10)] == [(1, 9, 9_999_999), (2, 1, 9_999_999)]


def test_apply_sees_the_key_the_window_and_its_rows(keyed, start):
    def texts(key, window, rows) -> list[Out]:
        return [Out(key, f"{window.start}-{window.end}: {[row.amount for row in rows]}")]

    job = start(keyed.window(ps.Session("2s")).apply(texts))
    job.feed((1, 5, 1), (1, 6, 8), (1, 7, 2))
    assert job.mark(20) == [
        (1, "1000000-4000000: [5, 7]", 3_999_999),
        (1, "8000000-10000000: [6]", 9_999_999),
    ]


def test_a_window_function_has_state_by_window_and_hears_of_its_end(keyed, start):
    windowed = keyed.window(ps.Tumbling("10s")).allowed_lateness("5s").late_to("late")
    job = start(windowed.process(Sums(), side_outputs={"over": Out}))
    job.feed((1, 5, 1))
    assert job.mark(10) == [(1, "0: 5, 1", 9_999_999)]
    assert job.feed((1, 6, 2)) == [(1, "0: 11, 2", 9_999_999)], "late, and within the allowed lateness"
    assert "over" not in job.out.sides
    job.mark(15)
    assert job.out.sides["over"] == [(1, "0", 9_999_999)]
    assert job.feed((1, 7, 3)) == []
    assert [row[1] for row in job.out.sides["late"]] == [7]


def test_windows_of_the_clock_fire_by_it(keyed, start):
    window = keyed.window(ps.Tumbling("10s", time="processing")).evictor(ps.evictor.count(2))
    job = start(window.aggregate(n=ps.count()))
    job.feed((1, 1, 5), (1, 2, 5), (1, 3, 5))
    assert job.tick(9_000) == []
    assert [row[3] for row in job.tick(1_000)] == [2]
    job.feed((1, 1, 5))
    assert [row[3] for row in job.mark(MAX_TIMESTAMP)] == [1], "what is open at the end comes out then"


def test_a_continuous_trigger_fires_by_the_clock_while_there_are_rows(keyed, start):
    window = keyed.window(ps.Global()).trigger(ps.trigger.continuous_processing_time("1s"))
    job = start(window.aggregate(n=ps.count()))
    assert job.tick(5_000) == []
    job.feed((1, 1, 5))
    assert [row[1] for row in job.tick(1_000)] == [1]
    job.feed((1, 1, 5))
    assert [row[1] for row in job.tick(1_000)] == [2]


class Every(ps.Trigger):
    """Fires for every row above a number, which it remembers."""

    def on_element(self, row, timestamp, window, ctx):
        highest = ctx.state.get("highest", 0)
        ctx.state["highest"] = max(highest, row.amount)
        return ps.TriggerResult.FIRE if row.amount > highest else ps.TriggerResult.CONTINUE


class Even(ps.Evictor):
    def evict_before(self, elements, window):
        return [element for element in elements if element.value.amount % 2 == 0]


def test_triggers_and_evictors_of_ones_own(keyed, start):
    window = keyed.window(ps.Tumbling("10s")).trigger(Every()).evictor(Even())
    job = start(window.aggregate(total=ps.sum("amount")))
    assert [row[3] for row in job.feed((1, 4, 1), (1, 3, 1), (1, 8, 1), (1, 9, 2))] == [4, 12, 12]


def test_a_fault_of_a_function_names_its_line(keyed, start):
    def broken(key, window, rows) -> list[Out]:
        return [Out(key, rows[7])]

    job = start(keyed.window(ps.Tumbling("10s")).apply(broken))
    job.feed((1, 5, 1))
    with pytest.raises(ps.PenstockError, match=r"IndexError.*test_window_rows.py.*in broken"):
        job.mark(10)


def refused(call, *words):
    with pytest.raises(ps.GraphError) as caught:
        call()
    for word in words:
        assert word in str(caught.value)
    assert caught.value.hint


def test_what_cannot_be_is_refused(env, source, keyed):
    tumbling, session = keyed.window(ps.Tumbling("10s")), keyed.window(ps.Session("10s"))
    refused(lambda: tumbling.trigger("count"), "'count'", "no trigger")
    refused(lambda: tumbling.evictor(3), "no evictor")
    refused(lambda: ps.trigger.count(0), "would never fire")
    refused(lambda: ps.trigger.purging(3), "no trigger")
    refused(lambda: ps.trigger.continuous_event_time("0s"), "not possible")
    refused(lambda: session.trigger(ps.trigger.delta(1, "amount")).aggregate(ps.count()), "sessions, which merge")
    refused(lambda: tumbling.reduce(3), "not a function")
    refused(lambda: tumbling.apply(lambda key, window, rows: rows), "output type is not known")
    refused(lambda: tumbling.process(lambda: 3), "no window function")
    zoned = keyed.window(ps.Tumbling("1d", time_zone="Asia/Tokyo"))
    assert "window_start" in zoned.trigger(ps.trigger.count(3)).aggregate(ps.count()).columns
    timeless = env.from_source(source(), uid="in").key_by("user_id").window(ps.Global())
    refused(lambda: timeless.trigger(ps.trigger.event_time()).aggregate(ps.count()), "needs event time")
    by_time = timeless.trigger(ps.trigger.count(2)).evictor(ps.evictor.time("10s"))
    refused(lambda: by_time.aggregate(ps.count()), "TimeEvictor needs event time")
    refused(lambda: timeless.late_to("late"), "no row is late for a window of global")
