"""Row states beyond memory: `python -m tests.bench.row_state`.

A keyed process function with a value, two maps and a timer for each key, over orders of random users. The same job runs
with `hashmap` and then with `rocksdb` and less and less managed memory, each in a separate process tree, measured from
outside. CPU seconds are without those of the same job over few rows (start-up). Every run has to count each order once.
With `--profile`, the operator runs in this process instead, and the functions with the most time are printed. With
`--alternate`, one operator for each backend and memory runs in this process, batch by batch in turn, so that the ratios
of their CPU seconds hold on a busy machine too.
"""

import argparse
import cProfile
import json
import os
import pstats
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pyarrow as pa
from tests.bench import row_state_job
from tests.bench.backfill import measured
from tests.property.harness.functions import spec_of_function

from penstock.config.settings import JobSettings
from penstock.core.clock import SystemClock
from penstock.core.elements import TS_COLUMN, Barrier, Batch, Watermark
from penstock.core.keygroup import ALL_HASHES
from penstock.core.snapshot import FileRef
from penstock.operators.operator import OperatorMetrics
from penstock.operators.process.keyed_process import KeyedProcessOperator
from penstock.state.memory.budget import MemoryBudget
from penstock.state.memory.limits import PRODUCTION
from penstock.state.state_backend import KeyedStateRequest
from penstock.state.store import open_keyed_state
from penstock_connectors.datagen.source import OrderPattern, orders
from penstock_lab.bench.measuring.tree_meter import become_reaper

CLI = [sys.executable, "-m", "penstock.cli.main"]
JOB = Path(__file__).with_name("row_state_job.py")
#: Rows of the run that only starts.
FEW = 2_000
#: Rows of a part of a batch, and between two checkpoints, in this process.
PART, CHECKPOINT = 512, 50_000


def run(backend, memory, options, rows):
    """Run the job in a separate process tree; return its seconds, CPU seconds and result."""
    with tempfile.TemporaryDirectory() as folder:
        variables = {"BENCH_ROWS": rows, "BENCH_USERS": options.users, "BENCH_FOLDER": folder}
        variables |= {"BENCH_BACKEND": backend, "BENCH_MEMORY": f"{memory}MB"}
        environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
        seconds, cpu = measured([*CLI, "run", str(JOB), "--json"], environment, folder)
        out = pl.read_parquet(f"{folder}/out/**/*.parquet")
        return seconds, cpu, (int(out["orders"].sum()), int(out["total"].sum()))


def compare(options):
    """Print a line for each backend and memory, with ratios to the first."""
    _, started, _ = run("hashmap", 1024, options, FEW)
    base = right = None
    for backend, memory in (("hashmap", 1024), *(("rocksdb", memory) for memory in options.memory)):
        seconds, cpu, result = run(backend, memory, options, options.rows)
        base, right = base or cpu - started, right or result
        assert result == right, f"{backend} counted {result}, hashmap {right}"
        assert result[0] == options.rows, f"{result[0]} of {options.rows} orders were counted"
        found = {"backend": backend, "memory_mb": memory, "seconds": round(seconds, 1), "cpu": round(cpu - started, 1)}
        print(json.dumps(found | {"ratio": round((cpu - started) / base, 2)}), flush=True)


class Out:
    """The number of orders counted."""

    def __init__(self):
        self.orders = 0

    def batch(self, batch):
        self.orders += sum(batch.data.column("orders").to_pylist())

    def watermark(self, _):
        pass


def opened_state(backend, memory, directory):
    limit = int(memory * (1 << 20))
    return open_keyed_state(
        KeyedStateRequest(
            uid="op",
            snapshots=(),
            hash_range=ALL_HASHES,
            settings=JobSettings(state_backend=backend, managed_memory_bytes=limit),
            read=lambda file: file.inline,
            directory=Path(directory),
            writer="run/v/0/0",
            budget=MemoryBudget(limit),
        )
    )


def operator_over(store, schema):
    spec = spec_of_function(row_state_job.Profile(), schema, ("user_id",))
    about = {"job_name": "bench", "subtask": 0, "parallelism": 1, "hash_range": ALL_HASHES, "restored": ()}
    given = {"metrics": OperatorMetrics(), "input_schemas": (schema,), "keyed_state": store, "limits": PRODUCTION}
    operator = KeyedProcessOperator()
    operator.open(SimpleNamespace(spec=spec, clock=SystemClock(), **about, **given))
    return operator


def barrier(operator, number, out):
    """Freeze the state, encode it and name its files."""
    for frozen in operator.snapshot(Barrier(number), out).keyed:
        while not frozen.copy_pages(16):
            pass
        encoded = frozen.encode()
        frozen.durable({e.position: FileRef(path="x", length=len(e.data)) for e in encoded})


def profile(options):
    """Run one operator over half of the keys and rows here; print where the time goes."""
    pattern = OrderPattern(splits=1, users=options.users // 2, event_rate=row_state_job.RATE // 2)
    rows, out, checkpoints = options.rows // 2, Out(), 0
    backend = "rocksdb" if options.memory else "hashmap"
    memory = options.memory[0] if options.memory else 1024
    # The state is closed first: a flush or compaction of RocksDB still writes into its folder.
    with tempfile.TemporaryDirectory() as folder, closing(opened_state(backend, memory, folder)) as state:
        operator = operator_over(state, prepared(orders(pattern, 0, 0, 1)).schema)
        profiler, begun = cProfile.Profile(), time.process_time()
        if options.profile > 1:
            profiler.enable()
        for low in range(0, rows, PART):
            data = prepared(orders(pattern, 0, low, min(PART, rows - low)))
            operator.process_batch(Batch(data), 0, out)
            operator.process_watermark(Watermark(data.column(TS_COLUMN)[-1].as_py()), out)
            if low // CHECKPOINT > checkpoints:
                checkpoints += 1
                barrier(operator, checkpoints, out)
        operator.process_watermark(Watermark((1 << 63) - 1), out)
        profiler.disable()
        print(json.dumps({"cpu": round(time.process_time() - begun, 2), "orders": out.orders}))
        if options.profile > 1:
            pstats.Stats(profiler).sort_stats("tottime").print_stats(45)


def alternate(options):
    """Run an operator for each backend and memory here over half of the keys and rows, batch by batch in turn."""
    pattern = OrderPattern(splits=1, users=options.users // 2, event_rate=row_state_job.RATE // 2)
    rows, kinds = options.rows // 2, [("hashmap", 1024), *(("rocksdb", memory) for memory in options.memory)]
    with ExitStack() as stack:
        schema, running = prepared(orders(pattern, 0, 0, 1)).schema, []
        for backend, memory in kinds:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            state = stack.enter_context(closing(opened_state(backend, memory, folder)))
            running.append((operator_over(state, schema), Out()))
        cpu, checkpoints = [0.0] * len(kinds), 0
        for low in range(0, rows, PART):
            data = prepared(orders(pattern, 0, low, min(PART, rows - low)))
            due, checkpoints = low // CHECKPOINT > checkpoints, low // CHECKPOINT
            for number, (operator, out) in enumerate(running):
                begun = time.process_time()
                operator.process_batch(Batch(data), 0, out)
                operator.process_watermark(Watermark(data.column(TS_COLUMN)[-1].as_py()), out)
                if due:
                    barrier(operator, checkpoints, out)
                cpu[number] += time.process_time() - begun
        for (backend, memory), (operator, out), seconds in zip(kinds, running, cpu, strict=True):
            operator.process_watermark(Watermark((1 << 63) - 1), out)
            assert out.orders == rows, f"{out.orders} of {rows} orders were counted"
            found = {"backend": backend, "memory_mb": memory, "cpu": round(seconds, 2)}
            print(json.dumps(found | {"ratio": round(seconds / cpu[0], 2)}), flush=True)


def prepared(batch):
    """Return orders with the column of event time."""
    times = batch.column("ts").cast(pa.int64())
    return batch.append_column(pa.field(TS_COLUMN, pa.int64(), nullable=False), times)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=600_000)
    parser.add_argument("--users", type=int, default=60_000)
    parser.add_argument("--memory", type=int, nargs="*", default=[256, 64, 16, 2], help="MB of each subtask")
    parser.add_argument("--profile", type=int, default=0, help="1: the operator alone; 2: with a profile of it")
    parser.add_argument("--alternate", action="store_true", help="operators in this process, batch by batch in turn")
    options = parser.parse_args()
    if options.alternate:
        alternate(options)
        return
    if options.profile:
        profile(options)
        return
    become_reaper()
    compare(options)


if __name__ == "__main__":
    main()
