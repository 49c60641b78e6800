"""Every public call as a user would write it; checked by `mypy --strict`, never run."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import assert_type

import polars as pl
import pyarrow as pa

import penstock as ps
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink


class Order(ps.Schema):
    user_id: int
    amount: int
    product: str | None
    ts: datetime


class Total(ps.Schema):
    user_id: int
    total: float


env = ps.Environment(
    parallelism=2,
    checkpoint_interval="5s",
    checkpoint_root="s3://bucket/checkpoints",
    state_backend="rocksdb",
    key_groups=1024,
    buffer_timeout="100ms",
    managed_memory="256MB",
    restart=ps.RestartStrategy(kind="fixed-delay", attempts=3, delay_ms=1000),
    slot_resources=[ps.ResourceProfile(cpu_cores=0.5, managed_memory_bytes=1 << 28)],
    requirements=["numpy>=2"],
)
assert_type(ps.Environment.from_args(parallelism=2), ps.Environment)

strategy = ps.WatermarkStrategy.bounded_out_of_orderness("5s", timestamp="ts").with_idleness("30s")
assert_type(strategy, ps.WatermarkStrategy)
ps.WatermarkStrategy.monotonic(timestamp="ts", unit="ms")

orders = env.from_source(DatagenSource(rows=1000), watermarks=strategy, uid="orders")
assert_type(orders, ps.DataStream)
assert_type(orders.columns, list[str])


def to_total(row: Order) -> Total:
    return Total(user_id=row.user_id, total=row.amount / 2)


def twice(row: Total) -> Iterator[Total]:
    yield row
    yield row


def halves(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


columns = (
    orders.select("user_id", "ts", pl.col("amount") * 2, cents=pl.col("amount") * 100)
    .with_columns(pl.col("cents").alias("c"), big=pl.col("cents") > 10)
    .filter(pl.col("big"))
    .filter(lambda row: bool(row.big))
)
assert_type(columns, ps.DataStream)
rows = orders.map(to_total).flat_map(twice).map(lambda row: row, returns=Total).map_batches(halves, returns=Total)
assert_type(rows, ps.DataStream)
moved = rows.rebalance().union(rows.broadcast())
assert_type(moved, ps.DataStream)

keyed = orders.key_by("user_id", "product")
assert_type(keyed, ps.KeyedStream)
assert_type(orders.key_by(lambda row: row.user_id % 3, returns=int, name="third"), ps.KeyedStream)
across = orders.window_all(ps.Session("1m", time="processing")).trigger(ps.trigger.count(3))
assert_type(across, ps.AllWindowedStream)
assert_type(across.aggregate(n=ps.count()), ps.DataStream)
assert_type(orders.count_window_all(10, 5).apply(lambda window, rows: rows, returns=Order), ps.DataStream)
assert_type(
    orders.join(orders).where(lambda row: row.user_id, returns=int).equal_to("user_id").window(ps.Session(1)),
    ps.DataStream,
)
windowed = keyed.window(ps.Sliding("1m", "10s", offset="5s")).allowed_lateness("1m")
assert_type(windowed, ps.WindowedStream)


class Totals(ps.ProcessWindowFunction):
    def process(self, key: int, ctx: ps.WindowContext, rows: Sequence[Order]) -> Iterator[Total]:
        ctx.window_state["rows"] = len(rows)
        yield Total(user_id=key, total=float(sum(row.amount for row in rows)))


of_all = keyed.window(ps.Global()).trigger(ps.trigger.purging(ps.trigger.count(10)))
assert_type(of_all.evictor(ps.evictor.count(3)).aggregate(n=ps.count()), ps.DataStream)
assert_type(keyed.window(ps.Cumulative("1h", "1d", time_zone="Europe/Berlin")), ps.WindowedStream)
assert_type(windowed.late_to("late").process(Totals()).side_output("late"), ps.DataStream)
assert_type(windowed.reduce(lambda left, right: right), ps.DataStream)
totals = (
    windowed.aggregate(
        ps.sum("amount").alias("total"),
        n=ps.count(),
        values=ps.count("product"),
        least=ps.min("amount"),
        most=ps.max("amount"),
        mean=ps.mean("amount"),
        var=ps.var("amount"),
        std=ps.std("amount"),
        first=ps.first("amount"),
        last=ps.last("amount"),
    )
    .uid("totals")
    .name("totals by user")
    .set_parallelism(4)
    .slot_sharing_group("windows")
    .disable_chaining()
)
assert_type(totals, ps.DataStream)


class Mean(ps.Aggregator[int, tuple[int, int], float]):
    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: int, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + 1, accumulator[1] + value

    def get_result(self, accumulator: tuple[int, int]) -> float:
        return accumulator[1] / accumulator[0]

    def merge(self, left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int]:
        return left[0] + right[0], left[1] + right[1]


class Seen(ps.KeyedProcessFunction):
    count: ps.ValueState[int] = ps.value_state()
    newest: ps.ValueState[datetime] = ps.value_state()
    amounts: ps.ListState[int] = ps.list_state()
    by_day: ps.MapState[str, int] = ps.map_state()
    most: ps.ReducingState[int] = ps.reducing_state(max, ttl="1h")
    brief: ps.ValueState[int] = ps.value_state(ttl=ps.StateTtlConfig("1h", update="on_read_and_write"))
    briefer: ps.ListState[int] = ps.list_state(ttl=ps.StateTtlConfig("1h", visibility="x"))  # type: ignore[arg-type]
    mean: ps.AggregatingState[int, float] = ps.aggregating_state(Mean())
    wrong: ps.AggregatingState[int, str] = ps.aggregating_state(Mean())  # type: ignore[arg-type]

    def open(self, ctx: ps.OpenContext) -> None:
        self.subtask = ctx.subtask

    def process(self, row: Order, ctx: ps.ProcessContext) -> Iterator[Total]:
        assert_type(self.count.value(), int | None)
        self.count.update((self.count.value() or 0) + 1)
        self.newest.update(row.ts)
        self.amounts.append(row.amount)
        self.amounts.append("one")  # type: ignore[arg-type]
        self.amounts.set([1, 2])
        assert_type(list(self.amounts.get()), list[int])
        assert_type(self.amounts[0], int)
        assert_type(self.by_day.get("x"), int | None)
        self.most.add(row.amount)
        assert_type(self.most.get(), int | None)
        self.mean.add("x")  # type: ignore[arg-type]
        assert_type(self.mean.get(), float | None)
        assert_type(self.by_day.get("x", 0.5), int | float)
        self.by_day["x"] = self.by_day["x"] + len(self.amounts)
        self.by_day.put("x", "y")  # type: ignore[arg-type]
        assert_type(list(self.by_day.items()), list[tuple[str, int]])
        ctx.timers.event(row.ts)
        ctx.timers.processing(ctx.processing_time + 1_000_000)
        ctx.timers.delete(ctx.watermark, processing=True)
        ctx.side("few", row)
        yield Total(user_id=row.user_id, total=1.0)

    def on_timer(self, timestamp: int, ctx: ps.ProcessContext) -> Iterator[Total]:
        self.count.clear()
        self.count.update("one")  # type: ignore[arg-type]
        yield Total(user_id=ctx.key, total=0.0)


seen = keyed.process(Seen(), side_outputs={"few": Order}).uid("seen")
assert_type(seen, ps.DataStream)
keyed.process(Seen, returns=Total)  # type: ignore[arg-type]

totals.side_output("dead-letter").sink_to(FileSink("letters"), uid="letters")
totals.sink_to(FileSink("out"), uid="out").name("files").set_parallelism(1)

assert_type(env.explain(), str)
assert_type(env.execute("order-totals"), ps.JobResult)
handle = env.submit("order-totals")
assert_type(handle, ps.JobHandle)
assert_type(handle.wait(timeout_ms=1000), str)
assert_type(totals.execute_and_collect(), pl.DataFrame)
assert_type(totals.execute_and_collect("first", limit=10), pl.DataFrame)
assert_type(env.from_collection([{"user_id": 1}], Order), ps.DataStream)
totals.print()
assert_type(orders.key_by("user_id").interval_join(orders.key_by("user_id"), "-5s", 2.5, suffix="_b"), ps.DataStream)


class Compared(ps.KeyedCoProcessFunction):
    most: ps.ValueState[int] = ps.value_state()

    def process1(self, row: Order, ctx: ps.ProcessContext) -> Iterator[Order]:
        yield row

    def process2(self, row: Order, ctx: ps.ProcessContext) -> None:
        self.most.update(row.amount)


connected = orders.key_by("user_id").connect(orders.key_by("user_id"))
assert_type(connected, ps.ConnectedStreams)
assert_type(connected.process(Compared()), ps.DataStream)
assert_type(orders.key_by("user_id").temporal_join(orders.key_by("user_id"), how="left"), ps.DataStream)


class Beside(ps.KeyedBroadcastProcessFunction):
    most: ps.BroadcastState[int, int] = ps.broadcast_state()

    def process(self, row: Order, ctx: ps.ProcessContext) -> Iterator[Order]:
        assert_type(self.most.get(row.user_id), int | None)
        yield row

    def process_broadcast(self, row: Order, ctx: ps.BroadcastContext) -> None:
        self.most.put(row.user_id, row.amount)


beside = orders.key_by("user_id").connect(orders.broadcast())
assert_type(beside, ps.BroadcastConnectedStream)
assert_type(beside.process(Beside()), ps.DataStream)
per_window = orders.join(orders, how="full").where("user_id").equal_to("user_id").window(ps.Tumbling("10s"))
assert_type(per_window, ps.DataStream)
try:
    env.execute("order-totals")
except ps.PenstockError as error:
    assert_type(error.hint, str)

ps.Tumbling("10s", time="processing")
ps.Environment(paralelism=2)  # type: ignore[call-arg]
ps.Tumbling("10s", time="event time")  # type: ignore[arg-type]
ps.count(1)  # type: ignore[arg-type]
orders.sink_to("topic")  # type: ignore[arg-type]
