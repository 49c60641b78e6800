"""The jobs of the backfill's bench over orders from Parquet, from Kafka or generated; `BENCH_KIND` chooses one."""

import os
from collections.abc import Iterator
from datetime import datetime

import penstock as ps
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink, FileSource
from penstock_connectors.kafka import KafkaSource

KIND = os.environ["BENCH_KIND"]


class Order(ps.Schema):
    user_id: int
    amount: int
    ts: datetime


class Count(ps.Schema):
    user_id: int
    second: int
    rows: int


class BySecond(ps.KeyedProcessFunction):
    """Counts the orders of each user by second, and emits each count when its second is over."""

    counts: ps.MapState[int, int] = ps.map_state()

    def process(self, row, ctx: ps.ProcessContext) -> Iterator[Count]:
        second = ctx.timestamp // 1_000_000
        known = self.counts.get(second)
        if known is None:
            ctx.timers.event((second + 1) * 1_000_000 - 1)
        self.counts.put(second, (known or 0) + 1)
        yield from ()

    def on_timer(self, timestamp: int, ctx: ps.ProcessContext) -> Iterator[Count]:
        second = timestamp // 1_000_000
        yield Count(user_id=ctx.key, second=second, rows=self.counts.get(second) or 0)
        self.counts.remove(second)


def orders(env, uid):
    if "BENCH_PARQUET" in os.environ:
        source = FileSource(f"{os.environ['BENCH_PARQUET']}/{uid}", Order, format="parquet")
    elif "BENCH_KAFKA" in os.environ:
        source = KafkaSource(os.environ["BENCH_KAFKA"], topic=uid, schema=Order, bounded="latest")
    else:
        source = DatagenSource(
            rows=int(os.environ["BENCH_ROWS"]), splits=3, users=int(os.environ["BENCH_USERS"]), event_rate=100_000,
            disorder_ms=400, seed=0 if uid == "orders" else 1,
        )  # fmt: skip
    strategy = ps.WatermarkStrategy.bounded_out_of_orderness("500ms", timestamp="ts")
    return env.from_source(source, watermarks=strategy, uid=uid)


env = ps.Environment(
    parallelism=int(os.environ["BENCH_CORES"]),
    checkpoint_interval="1s",
    checkpoint_root=f"{os.environ['BENCH_FOLDER']}/checkpoints",
)
keyed = orders(env, "orders").key_by("user_id")
if KIND == "windows":
    found = keyed.window(ps.Tumbling("1s")).aggregate(n=ps.count(), total=ps.sum("amount")).uid("found")
elif KIND == "sessions":
    found = keyed.window(ps.Session("150ms")).aggregate(n=ps.count(), total=ps.sum("amount")).uid("found")
elif KIND == "join":
    others = orders(env, "others").key_by("user_id")
    found = keyed.interval_join(others, "-20ms", "20ms").uid("found").select("user_id", "ts", "ts_right")
else:
    found = keyed.process(BySecond()).uid("found")
found.sink_to(FileSink(f"{os.environ['BENCH_FOLDER']}/out", format="parquet"), uid="out")
env.execute("backfill-bench")
