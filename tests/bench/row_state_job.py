"""The job of the benches of row states: a value, two maps and a timer for each user.

`BENCH_FOLDER` has the checkpoints. With `BENCH_KAFKA`, a broker's address, orders are read there, else generated.
"""

import os
from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

import penstock as ps

#: Orders in a second of event time, and the time between two timers of a user.
RATE, PERIOD_US = 10_000, 20_000_000
#: On Kafka: topics, and the group that the source commits its offsets for.
ORDERS, COUNTED, GROUP = "orders", "counted", "row-state"


class Order(ps.Schema):
    user_id: int
    amount: int
    ts: datetime


class Counted(NamedTuple):
    user_id: int
    orders: int
    total: int


class Seen(NamedTuple):
    """Orders since the last timer, and the amounts that were emitted."""

    orders: int
    emitted: int


class Profile(ps.KeyedProcessFunction):
    """Counts orders and amounts by kind; a timer emits those since the last one."""

    seen: ps.ValueState[Seen] = ps.value_state()
    totals: ps.MapState[int, int] = ps.map_state()
    latest: ps.MapState[int, int] = ps.map_state()

    def process(self, row, ctx: ps.ProcessContext) -> Iterator[Counted]:
        orders, emitted = self.seen.value() or (0, 0)
        if not orders:
            ctx.timers.event((ctx.timestamp // PERIOD_US + 1) * PERIOD_US - 1)
        self.seen.update(Seen(orders + 1, emitted))
        kind = row.amount % 4
        self.totals.put(kind, (self.totals.get(kind) or 0) + row.amount)
        self.latest.put(row.amount % 3, row.amount)
        yield from ()

    def on_timer(self, timestamp: int, ctx: ps.ProcessContext) -> Iterator[Counted]:
        del timestamp
        orders, emitted = self.seen.value() or (0, 0)
        total = sum(self.totals.values())
        yield Counted(ctx.key, orders, total - emitted)
        self.seen.update(Seen(0, total))


def generated():
    """The source and sink without a broker."""
    from penstock_connectors.datagen import DatagenSource
    from penstock_connectors.files import FileSink

    rows, users = int(os.environ["BENCH_ROWS"]), int(os.environ["BENCH_USERS"])
    source = DatagenSource(rows=rows, splits=2, users=users, event_rate=RATE)
    return source, FileSink(f"{os.environ['BENCH_FOLDER']}/out", format="parquet")


def on_kafka(bootstrap):
    """The source and sink on a broker, exactly once."""
    from penstock_connectors.kafka import KafkaSink, KafkaSource

    source = KafkaSource(bootstrap, topic=ORDERS, schema=Order, start="earliest", group=GROUP)
    return source, KafkaSink(bootstrap, topic=COUNTED, delivery="exactly-once")


def main():
    env = ps.Environment(
        parallelism=2,
        checkpoint_interval=os.environ.get("BENCH_INTERVAL", "2s"),
        checkpoint_timeout=os.environ.get("BENCH_TIMEOUT", "10min"),
        checkpoint_root=f"{os.environ['BENCH_FOLDER']}/checkpoints",
        state_backend=os.environ["BENCH_BACKEND"],
        managed_memory=os.environ["BENCH_MEMORY"],
    )
    source, sink = on_kafka(os.environ["BENCH_KAFKA"]) if "BENCH_KAFKA" in os.environ else generated()
    strategy = ps.WatermarkStrategy.bounded_out_of_orderness("0s", timestamp="ts")
    keyed = env.from_source(source, watermarks=strategy, uid="orders").key_by("user_id")
    keyed.process(Profile()).uid("profile").sink_to(sink, uid="out")
    env.execute("row-state-bench")


if "BENCH_FOLDER" in os.environ:
    main()
