"""A job that starts from a drained savepoint: the end of time was that of the run before, its input is not late."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import NamedTuple

import pyarrow as pa
import pytest
from tests.support.sizes import sizes

import penstock as ps
from penstock.config.settings import JobSettings
from penstock.core.clock import ManualClock
from penstock.core.elements import MAX_TIMESTAMP, Barrier, BarrierKind, Batch, Watermark
from penstock.core.keygroup import ALL_HASHES
from penstock.core.schema import schema_from_text
from penstock.core.snapshot import FileRef
from penstock.operators.operator import OperatorMetrics
from penstock.operators.registry import create_operator
from penstock.state.memory.budget import MemoryBudget
from penstock.state.state_backend import KeyedStateRequest
from penstock.state.store import open_keyed_state

SECOND = 1_000_000


class Seen(NamedTuple):
    user_id: int
    what: str


class Counting(ps.KeyedProcessFunction):
    count: ps.ValueState[int] = ps.value_state()

    def process(self, row, ctx) -> Iterator[Seen]:
        self.count.update((self.count.value() or 0) + 1)
        ctx.timers.event(ctx.timestamp + SECOND)
        if ctx.at_end:
            yield Seen(ctx.key, "at the end")

    def on_timer(self, timestamp, ctx):
        yield Seen(ctx.key, f"{self.count.value()} at {timestamp // SECOND}{' at the end' * ctx.at_end}")


class CountingBoth(ps.KeyedCoProcessFunction):
    count: ps.ValueState[int] = ps.value_state()

    def process1(self, row, ctx) -> Iterator[Seen]:
        self.count.update((self.count.value() or 0) + 1)
        ctx.timers.event(ctx.timestamp + SECOND)

    process2 = process1

    def on_timer(self, timestamp, ctx):
        yield Seen(ctx.key, f"{self.count.value()} at {timestamp // SECOND}{' at the end' * ctx.at_end}")


def keyed(orders):
    return orders.key_by("user_id")


def other(orders):
    return orders.select("ts", buyer="user_id", paid="amount").key_by("buyer")


def window_join(orders):
    joined = orders.join(other(orders)).where("user_id").equal_to("buyer")
    return joined.window(ps.Tumbling("10s"))


TEN = ps.Tumbling("10s")
#: How a stream is made, and what comes out behind the drain, as far as it is asked for.
SHAPES = {
    "window": (lambda o: keyed(o).window(TEN).aggregate(n=ps.count()), ("n",), [(1,), (1,)]),
    "lateness": (lambda o: keyed(o).window(TEN).allowed_lateness("5s").aggregate(n=ps.count()), ("n",), [(1,), (1,)]),
    "session": (lambda o: keyed(o).window(ps.Session("2s")).aggregate(n=ps.count()), ("n",), [(1,), (1,)]),
    "rows": (
        lambda o: keyed(o).window(TEN).trigger(ps.trigger.event_time()).aggregate(n=ps.count()),
        ("n",),
        [(1,), (1,)],
    ),
    "process": (lambda o: keyed(o).process(Counting()), ("what",), [("3 at 6",), ("4 at 13",)]),
    "both": (lambda o: keyed(o).connect(other(o)).process(CountingBoth()), ("what",), [("6 at 6",), ("8 at 13",)]),
    "interval": (lambda o: keyed(o).interval_join(other(o), "-1s", "1s"), ("amount", "paid"), [(3, 3), (4, 4)]),
    "outer": (
        lambda o: keyed(o).interval_join(other(o), "1s", "2s", how="left"),
        ("amount", "paid"),
        [(3, None), (4, None)],
    ),
    "joined": (window_join, ("amount", "paid"), [(3, 3), (4, 4)]),
    "temporal": (lambda o: keyed(o).temporal_join(other(o)), ("amount", "paid"), [(3, 3), (4, 4)]),
}


class Recorder:
    def __init__(self):
        self.rows = []

    def batch(self, batch):
        self.rows += batch.data.to_pylist()

    def watermark(self, watermark):
        pass


class Run:
    """The operator `uid` of a job, begun with what another run has saved."""

    def __init__(self, graph, uid, folder, before=None):
        vertex = next(v for v in graph.vertices if v.operators[0].uid == uid)
        self.spec = vertex.operators[0]
        edges = {edge.input_index: edge.schema for edge in graph.in_edges(vertex.id)}
        self.schemas = tuple(schema_from_text(text) for _, text in sorted(edges.items()))
        self.files = before.files if before else {}
        request = KeyedStateRequest(
            uid=uid,
            snapshots=tuple(before.keyed) if before else (),
            hash_range=ALL_HASHES,
            settings=JobSettings(),
            read=lambda file: self.files[file.path],
            directory=folder,
            writer="w",
            budget=MemoryBudget(64 << 20),
            limits=sizes(),
        )
        self.store, self.out, self.metrics = open_keyed_state(request), Recorder(), OperatorMetrics()
        self.operator = create_operator(self.spec.kind)
        self.pending = self.operator.open(
            SimpleNamespace(
                spec=self.spec,
                hash_range=ALL_HASHES,
                metrics=self.metrics,
                input_schemas=self.schemas,
                keyed_state=self.store,
                limits=sizes(),
                restored=tuple(before.saved) if before else (),
                clock=ManualClock(),
                subtask=0,
                parallelism=1,
                job_name="j",
            )
        ).pending_output

    def feed(self, *rows):
        """Give the same (amount, seconds) to each input."""
        for index, schema in enumerate(self.schemas):
            values = [
                {"user_id": 1, "buyer": 1, "amount": a, "paid": a, "ts": s * SECOND, "__ts": s * SECOND}
                for a, s in rows
            ]
            self.operator.process_batch(Batch(pa.RecordBatch.from_pylist(values, schema=schema)), index, self.out)

    def mark(self, timestamp):
        self.operator.process_watermark(Watermark(timestamp), self.out)
        while self.pending is not None and self.pending.has_pending_output:
            self.pending.emit_ready(self.out)

    def drain(self):
        self.mark(MAX_TIMESTAMP)
        self.operator.finish(self.out)
        taken = self.operator.snapshot(Barrier(1, BarrierKind.DRAIN), self.out)
        self.saved, self.keyed = taken.operator, []
        for frozen in taken.keyed:
            assert frozen.copy_pages(1 << 20)
            places = {}
            for encoded in frozen.encode():
                places[encoded.position] = FileRef(path=str(len(self.files)))
                self.files[str(len(self.files))] = encoded.data
            frozen.durable(places)
            self.keyed.append(frozen.snapshot())


@pytest.mark.parametrize("shape", SHAPES)
def test_what_starts_from_a_drained_savepoint_takes_rows_of_before(shape, env, orders, sink, tmp_path):
    make, names, expected = SHAPES[shape]
    make(orders).uid("it").sink_to(sink(), uid="out")
    graph = env.job_graph("j")
    first = Run(graph, "it", tmp_path / "1")
    first.feed((1, 3), (2, 14))
    first.drain()
    first.store.close()
    assert first.out.rows
    again = Run(graph, "it", tmp_path / "2", first)
    again.mark(4 * SECOND)
    again.feed((3, 5))
    again.mark(10 * SECOND)
    again.feed((4, 12))
    again.mark(20 * SECOND)
    assert [tuple(row[name] for name in names) for row in again.out.rows] == expected
    assert again.metrics.late_records_dropped == 0
    again.store.close()
