"""Jobs to be looked at: one that is slow on purpose, in one operator, and the cluster it runs on."""

from penstock.api.job_file import planned
from penstock.client.executors import ClusterExecutor, SubmitOptions
from penstock.graph.job_graph import encode_graph

#: Four of five rows have one key.
_HOT = '.with_columns(user_id=pl.when(pl.col("user_id") < 40).then(pl.lit(0, pl.Int64)).otherwise(pl.col("user_id")))'
# A generator that gives more than it takes, an operator that thinks about every row, a window that has little to do.
SLOW = """
import os
from collections.abc import Iterator
from datetime import datetime

import penstock as ps
import polars as pl
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink


class Rated(ps.Schema):
    user_id: int
    risk: int
    ts: datetime


class Rate(ps.KeyedProcessFunction):
    seen: ps.ValueState[int] = ps.value_state()

    def process(self, row, ctx: ps.ProcessContext) -> Iterator[Rated]:
        count = (self.seen.value() or 0) + 1
        self.seen.update(count)
        risk = sum(number * number for number in range({work})) % 97
        if count % {looks} == 0 and os.path.exists({broken!r}):
            check(row, risk)
        yield Rated(user_id=row.user_id, risk=risk + count, ts=row.ts)


def check(row, risk):
    raise ValueError(f"user {{row.user_id}} cannot be rated")


env = ps.Environment(parallelism=2, checkpoint_interval="1s", checkpoint_root={root!r}, buffer_size_bytes=8192{more})
orders = env.from_source(
    DatagenSource(rows={rows}, users=50, rows_per_second={rate}),
    watermarks=ps.WatermarkStrategy.bounded_out_of_orderness("5s", timestamp="ts"),
    uid="orders",
).name("orders").set_parallelism(1)
(orders{rows_with_key}.key_by("user_id").process(Rate()).uid("rate").name("rate orders")
       .key_by("risk").window(ps.Tumbling("10s")).aggregate(n=ps.count()).uid("risks").name("count risks")
       .sink_to(FileSink({root!r} + "/out"), uid="out"))
env.execute({name!r})
"""


def graph_of(folder, *, name="order-risks", rows=10**9, rate=200_000, work=150, hot_key=False):
    """Return the encoded graph of the slow job; a file `broken` in `folder` makes its function fail.

    `hot_key`: most rows have one key, and rows in flight are bounded by time.
    """
    path = folder / "rate_orders.py"
    settings = {"root": str(folder / "root"), "broken": str(folder / "broken"), "name": name}
    # seldom: a flame graph sees most of what lets go of the interpreter's lock, as a look at a file does
    settings |= {"rows": rows, "rate": rate, "work": work, "looks": max(64, rate // 50)}
    settings |= {
        "rows_with_key": _HOT if hot_key else "",
        "more": ', buffer_debloat_target="200ms"' if hot_key else "",
    }
    path.write_text(SLOW.format(**settings), encoding="utf-8")
    return planned(path, {}, name)


def submit(url, folder, **options):
    """Start the slow job on a cluster; return its handle."""
    return ClusterExecutor(url=url, options=SubmitOptions()).submit(graph_of(folder, **options))


def encoded(folder, **options):
    """Return the bytes that `POST /penstock/submit` takes."""
    return encode_graph(graph_of(folder, **options))
