"""Measures windows of a key with 90 % of the rows, with and without `spread`: `python -m tests.bench.spread_key`.

The first lines are a run with 4 slots: elapsed time, CPU seconds of this process and its workers, rows per second. The
last ones are the CPU time of each of the 4 subtasks of the window, stepped in one thread.
"""

import resource
import sys
import time

import numpy as np
import polars as pl
import pyarrow as pa

import penstock as ps
from penstock.testing import JobHarness
from penstock_connectors.datagen import DatagenSource

SPREADS, SUBTASKS, ROWS = (1, 16), 4, 20_000_000
#: Batches of the second part, and their rows; the user of this number has 90 % of these.
BATCHES, SIZE, HOT = 40, 50_000, 0


def windows_of(orders, spread):
    keyed = orders.key_by("user_id", spread=spread).window(ps.Tumbling("10s"))
    return keyed.aggregate(n=ps.count(), total=ps.sum("price"), deviation=ps.std("price")).uid("windows")


def source(**config):
    strategy = ps.WatermarkStrategy.bounded_out_of_orderness("0s", timestamp="ts")
    env = ps.Environment(parallelism=SUBTASKS)
    orders = env.from_source(DatagenSource(**config), watermarks=strategy, uid="orders")
    return orders.with_columns(price=pl.col("amount") / 7)


def cpu_seconds():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def run(spread):
    """Run a job of 20 million orders, which are a tenth hot by their amount."""
    hot = pl.when(pl.col("amount") > 90).then(pl.col("user_id")).otherwise(HOT)
    out = windows_of(source(rows=ROWS, event_rate=100_000).with_columns(user_id=hot), spread)
    used, began = cpu_seconds(), time.perf_counter()
    rows = out.execute_and_collect()["n"].sum()
    passed = time.perf_counter() - began
    assert rows == ROWS, rows
    return f"{passed:.1f} s, {cpu_seconds() - used:.1f} CPU-s, {ROWS / passed / 1e6:.2f} million rows/s"


def batch(random, number):
    users = random.integers(1, 1000, SIZE)
    users[random.random(SIZE) < 0.9] = HOT
    times = 1_767_225_600_000_000 + number * 1_000_000 + np.arange(SIZE) * 1_000_000 // SIZE
    columns = [
        pa.array(users),
        pa.array(random.integers(0, 100, SIZE)),
        pa.array(times).view(pa.timestamp("us", "UTC")),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=DatagenSource().row_schema)


def timed(call, spent):
    def measured(*given):
        began = time.thread_time()
        call(*given)
        spent.append(time.thread_time() - began)

    return measured


def subtasks(spread):
    """Return the share of rows and the CPU time of each subtask that receives the rows of the source."""
    head, random, spent = "windows.partial" if spread > 1 else "windows", np.random.default_rng(1), {}
    with JobHarness(windows_of(source(), spread), parallelism=SUBTASKS) as job:
        for subtask in job._job.subtasks:
            operator = subtask.links[0].operator
            if subtask.links[0].spec.uid == head:
                mine = spent[subtask] = []
                operator.process_batch = timed(operator.process_batch, mine)
        for number in range(BATCHES):
            job.push("orders", batch(random, number))
        rows = [subtask.metrics.publish()["numRecordsIn"] for subtask in spent]
    shares = ", ".join(f"{100 * one / sum(rows):.0f} %" for one in rows)
    return f"rows {shares}; CPU {', '.join(f'{1000 * sum(times):.0f} ms' for times in spent.values())}"


def main():
    for part in (run, subtasks):
        for spread in SPREADS * 2:
            sys.stdout.write(f"spread={spread}: {part(spread)}\n")


if __name__ == "__main__":
    main()
