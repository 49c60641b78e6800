"""Keyed process functions by example: rows, values, timers, side outputs, errors, what is saved and found again."""

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from types import SimpleNamespace
from typing import Annotated, NamedTuple

import pyarrow as pa
import pytest

import penstock as ps
from penstock.api.process import compile_process
from penstock.config.settings import JobSettings
from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, TS_COLUMN, Barrier, BarrierKind, Batch, Watermark
from penstock.core.errors import PenstockError, StateMismatchError, UsageError
from penstock.core.keygroup import ALL_HASHES, hash_range_of
from penstock.core.schema import schema_to_text
from penstock.core.snapshot import FileRef
from penstock.graph.restore_plan import clip_keyed
from penstock.kernels.hashing import hash_columns
from penstock.operators.functions import UserFunctionError
from penstock.operators.registry import create_operator
from penstock.state.budget import MemoryBudget
from penstock.state.store import KeyedStateRequest, open_keyed_state

SCHEMA = pa.schema(
    [pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64()), pa.field(TS_COLUMN, pa.int64())]
)
NAMES = pa.schema([pa.field("k", pa.string()), pa.field("v", pa.int64()), pa.field(TS_COLUMN, pa.int64())])


class Out(NamedTuple):
    k: int
    what: str
    n: int | None


class Opened:
    """One operator, its state's files in memory; `restored` goes on from a snapshot."""

    def __init__(self, world, function, snapshots=(), *, hashes=ALL_HASHES, schema=SCHEMA, key=("k",), **options):
        self.world, self.function, self.schema, self.key, self.options = world, function, schema, key, options
        stream = SimpleNamespace(flow=SimpleNamespace(schema=schema, row_type=None), keys=key)
        made = compile_process(function, None, options.get("sides", {}), stream=stream)
        world.stores.append(
            open_keyed_state(
                KeyedStateRequest(
                    uid="fn",
                    snapshots=tuple(snapshots),
                    hash_range=hashes,
                    settings=JobSettings(),
                    read=lambda file: world.files[file.path],
                    directory=world.folder / str(len(world.stores)),
                    writer=f"run/v/0/{len(world.stores)}",
                    budget=MemoryBudget(options.get("memory", 1 << 30)),
                )
            )
        )
        spec = SimpleNamespace(
            uid="fn", payload=made.spec.payload, config=made.spec.config, output_schema=schema_to_text(made.schema)
        )
        context = world.bench.context(
            spec, schema, keyed_state=world.stores[-1], hash_range=hashes, parallelism=2, subtask=1
        )
        self.operator = create_operator("process")
        self.operator.open(context)
        self.out = world.recorder()

    def rows(self, *rows):
        batch = pa.RecordBatch.from_pylist(
            [dict(zip(self.schema.names, row, strict=True)) for row in rows], self.schema
        )
        self.operator.process_batch(Batch(batch), 0, self.out)
        return self.taken()

    def watermark(self, time):
        self.operator.process_watermark(Watermark(time), self.out)
        return self.taken()

    def tick(self, ms):
        self.world.bench.clock.advance(ms)
        due = self.operator.next_timer_ms
        if due is not None and due <= self.world.bench.clock.now_ms():
            self.operator.process_time(self.world.bench.clock.now_ms(), self.out)
        return self.taken()

    def taken(self):
        """Return the rows emitted since the last call as (k, what, n, event time)."""
        rows = [tuple(row.values()) for row in self.out.rows]
        self.out.elements.clear()
        return rows

    def snapshot(self, checkpoint=1, kind=BarrierKind.CHECKPOINT):
        taken = []
        for frozen in self.operator.snapshot(Barrier(checkpoint, kind), self.out).keyed:
            assert frozen.copy_pages(1)
            files = {}
            for encoded in frozen.encode():
                files[encoded.position] = FileRef(path=str(len(self.world.files)))
                self.world.files[str(len(self.world.files))] = encoded.data
            frozen.durable(files)
            taken.append(frozen.snapshot())
        return taken

    def restored(self, function=None, parallelism=1, subtask=0, *others):
        hashes = hash_range_of(subtask, parallelism, 1024)
        clipped = [c for s in self.snapshot(9) for c in [clip_keyed(s, hashes)] if c]
        clipped += [c for s in others for c in [clip_keyed(s, hashes)] if c]
        return Opened(self.world, function or self.function, clipped, hashes=hashes, **self.same())

    def same(self):
        return {"schema": self.schema, "key": self.key, **self.options}


@pytest.fixture
def world(tmp_path, bench, out):
    made = SimpleNamespace(folder=tmp_path, bench=bench, recorder=type(out), stores=[], files={})
    yield made
    for store in made.stores:
        store.close()


class Counting(ps.KeyedProcessFunction):
    """Counts a key's rows; at the end of each ten microseconds says how many there were, and forgets them."""

    count: ps.ValueState[int] = ps.value_state()

    def process(self, row, ctx) -> Iterator[Out]:
        n = (self.count.value() or 0) + 1
        self.count.update(n)
        ctx.timers.event(ctx.timestamp // 10 * 10 + 9)
        if row.v:
            yield Out(ctx.key, "row", n)

    def on_timer(self, timestamp, ctx):
        yield Out(ctx.key, f"{ctx.time_domain}@{timestamp}", self.count.value())
        self.count.clear()


def test_values_and_timers_belong_to_their_key(world):
    op = Opened(world, Counting())
    assert op.rows((1, 0, 1), (2, 1, 2), (1, 1, 3), (1, 1, 4)) == [(2, "row", 1, 2), (1, "row", 2, 3), (1, "row", 3, 4)]
    assert op.watermark(8) == []
    assert op.watermark(9) == [(1, "event@9", 3, 9), (2, "event@9", 1, 9)]
    assert op.watermark(30) == []
    assert op.rows((1, 1, 31)) == [(1, "row", 1, 31)]


def test_timers_fire_in_order_of_time_whatever_the_watermark_jumps_over(world):
    op = Opened(world, Counting())
    op.rows((1, 0, 55), (2, 0, 12), (1, 0, 12), (3, 0, 3_000_000), (2, 0, 33))
    fired = op.watermark(10_000_000)
    assert [(k, what, n) for k, what, n, _ in fired] == [
        (1, "event@19", 2),
        (2, "event@19", 2),
        (2, "event@39", None),
        (1, "event@59", None),
        (3, "event@3000009", 1),
    ]


def test_a_timer_of_the_past_fires_with_the_next_watermark(world):
    op = Opened(world, Counting())
    op.watermark(100)
    op.rows((1, 0, 5))
    assert op.watermark(100) == []
    assert op.watermark(101) == [(1, "event@9", 1, 9)]


class Chained(ps.KeyedProcessFunction):
    """Timers that register and delete timers while they fire."""

    def process(self, row, ctx) -> Iterator[Out]:
        for time in (10, 20, 30):
            ctx.timers.event(time)
        ctx.timers.delete(40)
        ctx.timers.event(dt.datetime(1970, 1, 1, 0, 0, 0, 40))

    def on_timer(self, timestamp, ctx):
        yield Out(ctx.key, str(timestamp), None)
        if timestamp == 10:
            ctx.timers.delete(20)
            ctx.timers.event(30)  # there is one
            ctx.timers.event(15)
            ctx.timers.event(15)
            ctx.timers.event(3)
        if timestamp == 15:
            ctx.timers.event(16)
            ctx.timers.event(1000)


def test_timers_registered_and_deleted_while_timers_fire(world):
    op = Opened(world, Chained())
    op.rows((1, 0, 1))
    assert [what for _, what, *_ in op.watermark(35)] == ["10", "3", "15", "16", "30"]
    assert [what for _, what, *_ in op.restored().watermark(2000)] == ["40", "1000"]


class Endless(ps.KeyedProcessFunction):
    def process(self, row, ctx) -> Iterator[Out]:
        ctx.timers.event(0)

    def on_timer(self, timestamp, ctx):
        ctx.timers.event(timestamp + 1)


def test_timers_without_end_are_an_error_at_the_end_of_input(world, monkeypatch):
    monkeypatch.setattr("penstock.operators.process._MOST_AT_END", -900)
    op = Opened(world, Endless())
    op.rows((1, 0, 1))
    op.watermark(10)
    with pytest.raises(PenstockError, match="goes on registering timers at the end of input"):
        op.watermark(MAX_TIMESTAMP)


class Wall(ps.KeyedProcessFunction):
    def process(self, row, ctx) -> Iterator[Out]:
        ctx.timers.processing(ctx.processing_time + row.v * 1000)
        if row.v == 7:
            ctx.timers.delete(ctx.processing_time + 5000, processing=True)

    def on_timer(self, timestamp, ctx):
        yield Out(ctx.key, ctx.time_domain, timestamp)


def test_processing_timers_go_by_the_clock_and_their_rows_are_never_late(world):
    op = Opened(world, Wall())
    now = world.bench.clock.now_ms()
    assert op.operator.next_timer_ms is None
    op.rows((1, 5, 1), (2, 9, 1), (3, 5, 1), (3, 7, 1))
    op.watermark(50)
    assert op.operator.next_timer_ms == now + 5
    assert op.tick(4) == []
    assert op.tick(2) == [(1, "processing", (now + 5) * 1000, 51)]
    op = op.restored()
    assert op.operator.next_timer_ms == now + 7
    assert op.tick(10) == [
        (3, "processing", (now + 7) * 1000, (now + 7) * 1000),
        (2, "processing", (now + 9) * 1000, (now + 9) * 1000),
    ]


def test_no_processing_timer_fires_behind_the_end(world):
    op = Opened(world, Wall())
    op.rows((1, 5, 1))
    op.snapshot(1, BarrierKind.STOP)
    assert op.operator.next_timer_ms is None


class Money(ps.Schema):
    amount: Annotated[Decimal, ps.Precision(30, 2)]
    note: str | None


class Pair(NamedTuple):
    a: int
    b: str | None


class Everything(ps.KeyedProcessFunction):
    number: ps.ValueState[int] = ps.value_state()
    real: ps.ValueState[float] = ps.value_state()
    flag: ps.ValueState[bool] = ps.value_state()
    text: ps.ValueState[str | None] = ps.value_state()
    raw: ps.ValueState[bytes] = ps.value_state()
    time: ps.ValueState[dt.datetime] = ps.value_state()
    day: ps.ValueState[dt.date] = ps.value_state()
    money: ps.ValueState[Annotated[Decimal, ps.Precision(10, 2)]] = ps.value_state()
    pair: ps.ValueState[Pair] = ps.value_state()
    model: ps.ValueState[Money] = ps.value_state()

    def open(self, ctx):
        self.states = [getattr(self, name) for name in ALL]

    def process(self, row, ctx) -> Iterator[Out]:
        if row.v == 0:
            for state, value in zip(self.states, ALL.values(), strict=True):
                state.update(value)
        elif row.v == 1:
            for name, state in zip(ALL, self.states, strict=True):
                found = state.value()
                yield Out(0, name if found == ALL[name] else f"{name}: {found!r}", None)
        elif row.v == 2:
            for state in self.states:
                state.clear()
        else:
            yield Out(0, "gone" if all(state.value() is None for state in self.states) else "there", None)


ALL = {
    "number": -(1 << 62),
    "real": -0.5,
    "flag": False,
    "text": "ä" * 9,
    "raw": b"",
    "time": dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC),
    "day": dt.date(1969, 1, 2),
    "money": Decimal("-12.34"),
    "pair": Pair(3, None),
    "model": Money(amount=Decimal("123456789012345678901234.56"), note=None),
}


@pytest.mark.parametrize("schema", [SCHEMA, NAMES])
def test_values_of_every_type_are_saved_and_found_again(world, schema):
    first, second = (1, 2) if schema is SCHEMA else ("one", None)
    op = Opened(world, Everything(), schema=schema)
    op.rows((first, 0, 1), (second, 3, 1), (second, 0, 2))
    for _ in range(2):
        assert [what for _, what, *_ in op.rows((first, 1, 1), (second, 1, 1))] == [*ALL, *ALL]
        op = op.restored()
    assert [what for _, what, *_ in op.rows((first, 2, 1), (first, 3, 2))] == ["gone"]
    op = op.restored()
    assert [what for _, what, *_ in op.rows((first, 3, 2), (second, 3, 2))] == ["gone", "there"]


def test_a_cleared_value_stays_cleared_and_unchanged_state_is_not_saved_again(world):
    op = Opened(world, Counting())
    op.rows((1, 0, 1), (2, 0, 1), (3, 0, 11))
    op.snapshot(1)
    op.watermark(9)
    states = {s.state: s for s in op.snapshot(2)}
    assert [s.rows for s in states["count"].segments] == [3, 2]
    assert op.snapshot(3) == list(states.values())
    assert op.restored().watermark(19) == [(3, "event@19", 1, 19)]


def test_a_restore_in_the_middle_of_a_window_loses_no_timer_and_fires_none_again(world):
    op = Opened(world, Counting())
    op.rows((1, 0, 1), (2, 0, 11))
    op.snapshot(1)
    op.rows((1, 0, 2), (3, 0, 3))
    assert len(op.watermark(9)) == 2
    op.rows((4, 0, 12))
    op = op.restored()
    assert op.watermark(10) == []
    assert sorted(op.watermark(19)) == [(2, "event@19", 1, 19), (4, "event@19", 1, 19)]


def test_a_change_of_parallelism_hands_keys_over(world):
    op = Opened(world, Counting())
    op.rows(*((k, 0, k % 30) for k in range(300)))
    fired = op.watermark(9)
    one, two = (op.restored(None, 2, i) for i in range(2))
    fired += one.watermark(15)
    saved = one.snapshot(5)
    three = [two.restored(None, 3, i, *saved) for i in range(3)]
    for part in three:
        fired += part.watermark(MAX_TIMESTAMP)
    assert sorted(k for k, *_ in fired) == list(range(300))
    assert {n for _, _, n, _ in fired} == {1}


def test_dead_keys_are_dropped_and_living_ones_keep_what_they_have(world, monkeypatch):
    monkeypatch.setattr("penstock.state.row_state._DEAD_KEYS", 100)
    op = Opened(world, Counting())
    for first in range(0, 5000, 50):
        op.rows(*((k, 0, k // 10) for k in range(first, first + 50)), (-7, 0, 10_000))
        op.snapshot(first)
        op.watermark(first // 10)
    assert op.operator._state.index.count < 1000
    assert op.rows((-7, 1, 10_001)) == [(-7, "row", 101, 10_001)]
    op = op.restored()
    fired = op.watermark(20_000)
    assert (-7, "event@10009", 101, 10_009) in fired


class Wrong(ps.KeyedProcessFunction):
    count: ps.ValueState[int] = ps.value_state()

    def process(self, row, ctx) -> Iterator[Out]:
        if row.v == 1:
            raise KeyError("nothing")
        if row.v == 2:
            self.count.update("two")
        if row.v == 3:
            ctx.timers.event("soon")
        if row.v == 4:
            ctx.timers.event(1 << 70)
        if row.v == 5:
            ctx.side("odd", row)
        if row.v == 6:
            yield Out(1, None, 2)


def test_errors_name_the_line_of_the_function(world):
    with pytest.raises(
        UserFunctionError, match=r"process 'fn': KeyError: 'nothing' at .*test_process_operator.py:\d+ in"
    ):
        Opened(world, Wrong()).rows((1, 0, 1), (1, 1, 1))
    with pytest.raises(
        UserFunctionError, match=r"neither microseconds nor a datetime.* at .*test_process_operator.py:\d+ in"
    ):
        Opened(world, Wrong()).rows((1, 3, 1))
    with pytest.raises(UserFunctionError, match="no side output 'odd'"):
        Opened(world, Wrong()).rows((1, 5, 1))


@pytest.mark.parametrize(
    ("v", "text"),
    [
        (2, "state 'count': field 'value' does not fit int64"),
        (4, "beyond 64 bits"),
        (6, "'what' was None in 1 of 1 rows"),
    ],
)
def test_values_that_do_not_fit_are_an_error(world, v, text):
    with pytest.raises(PenstockError, match=text):
        Opened(world, Wrong()).rows((1, v, 1))


class Renamed(ps.KeyedProcessFunction):
    counted: ps.ValueState[int] = ps.value_state()

    def process(self, row, ctx) -> Iterator[Out]:
        yield Out(1, "", self.counted.value())


class Retyped(Counting):
    count: ps.ValueState[float] = ps.value_state()


class Wider(Counting):
    more: ps.ValueState[float] = ps.value_state()


def test_state_that_does_not_fit_is_refused_and_a_new_state_begins_empty(world):
    op = Opened(world, Counting())
    op.rows((1, 0, 1))
    with pytest.raises(StateMismatchError, match="holds the state 'count', the job declares counted"):
        op.restored(Renamed())
    with pytest.raises(StateMismatchError, match=r"value int64.*the job keeps.*value double"):
        op.restored(Retyped())
    assert op.restored(Wider()).watermark(9) == [(1, "event@9", 1, 9)]


def test_state_outside_of_a_row_is_an_error():
    with pytest.raises(UsageError, match="state belongs to a key"):
        Counting().count.value()


def test_state_beyond_its_memory_is_an_error(world):
    op = Opened(world, Counting(), memory=500_000)
    with pytest.raises(PenstockError, match="the state of fn needs"):
        op.rows(*((k, 0, 1) for k in range(20_000)))


class Sides(ps.KeyedProcessFunction):
    def process(self, row, ctx) -> Iterator[Out]:
        ctx.side("even" if row.v % 2 == 0 else "odd", Pair(row.v, ctx.key[1]))
        return ()

    def close(self):
        CLOSED.append(1)


CLOSED = []


def test_side_outputs_and_keys_of_several_columns(world):
    schema = pa.schema([pa.field("k", pa.int64()), pa.field("s", pa.string()), *list(SCHEMA)[1:]])
    op = Opened(world, Sides(), schema=schema, key=("k", "s"), sides={"even": Pair, "odd": Pair})
    assert op.rows((1, "x", 4, 1), (1, None, 5, 2)) == []
    assert {tag: [r for b in found for r in b.to_pylist()] for tag, found in op.out.sides.items()} == {
        "even": [{"a": 4, "b": "x", TS_COLUMN: 1}],
        "odd": [{"a": 5, "b": None, TS_COLUMN: 2}],
    }
    op.operator.close()
    op.operator.close()
    assert CLOSED == [1]


def test_snapshots_are_sorted_by_the_hash_every_key_has(world):
    op = Opened(world, Counting())
    op.rows(*((k, 0, 1) for k in range(100)))
    (count, timers, _) = op.snapshot(1)
    assert [count.state, timers.state] == ["count", "__timers_event"]
    for state in (count, timers):
        table = pa.parquet.read_table(pa.BufferReader(op.world.files[state.segments[0].file.path]))
        assert table.column("__key_hash").to_pylist() == sorted(hash_columns(table.to_batches()[0], ("k",)).tolist())
    assert MIN_TIMESTAMP < timers.segments[0].namespace_min == 9
