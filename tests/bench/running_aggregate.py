"""The running aggregate alone, w2's million keys: rows per CPU-second, what a barrier costs, and the path to disk. Run.

Python tests/bench/running_aggregate.py [--memory 12]
"""

import argparse
import json
import statistics
import time
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import numpy as np
import pyarrow as pa

from penstock.config.settings import JobSettings
from penstock.core.elements import TS_COLUMN, Barrier, Batch
from penstock.core.keygroup import ALL_HASHES
from penstock.core.snapshot import FileRef
from penstock.operators.aggregates.running_operators import RunningAggregateOperator
from penstock.operators.operator import OperatorMetrics
from penstock.state.memory.budget import MemoryBudget
from penstock.state.state_backend import KeyedStateRequest
from penstock.state.store import open_keyed_state
from penstock_lab.bench.measuring import reference

SCHEMA = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in ("key", "amount", TS_COLUMN)])
CONFIG = {
    "key": ["key"],
    "aggregates": [
        {"fn": "count", "column": None, "alias": "n"},
        {"fn": "sum", "column": "amount", "alias": "total"},
    ],
}


class Sink:
    """The checksum of w2."""

    def __init__(self):
        self.sums = [0, 0, 0, 0]
        self.cpu = 0.0

    def batch(self, batch):
        begun = time.thread_time()
        key, n, total = (batch.data.column(i).to_numpy() for i in range(3))
        check = (key * 31 + n) % reference.MODULUS
        for i, value in enumerate((len(key), n.sum(), total.sum(), check.sum())):
            self.sums[i] += int(value)
        self.cpu += time.thread_time() - begun


def opened(arguments, directory):
    limit = int(arguments.memory * (1 << 20))
    store = open_keyed_state(
        KeyedStateRequest(
            uid="w2",
            snapshots=(),
            hash_range=ALL_HASHES,
            settings=JobSettings(state_backend="rocksdb", managed_memory_bytes=limit),
            read=lambda file: file.inline,
            directory=directory,
            writer="run/v/0/0",
            budget=MemoryBudget(limit),
        )
    )
    operator = RunningAggregateOperator()
    operator.open(
        SimpleNamespace(
            spec=SimpleNamespace(uid="w2", config=CONFIG),
            hash_range=ALL_HASHES,
            metrics=OperatorMetrics(),
            input_schemas=(SCHEMA,),
            keyed_state=store,
            restored=(),
        )
    )
    return operator, store


def batches(arguments):
    for low in range(0, arguments.rows, arguments.batch):
        columns = reference.events(low, min(low + arguments.batch, arguments.rows), arguments.keys)
        yield Batch(pa.RecordBatch.from_arrays([pa.array(c) for c in columns], schema=SCHEMA))


def barrier(operator, store, number, sink, figures):
    """Freeze, copy, encode and name; figures in CPU milliseconds."""
    times = [time.thread_time()]
    (frozen,) = operator.snapshot(Barrier(number), sink).keyed
    times.append(time.thread_time())
    pieces = 0.0
    done = False
    while not done:
        begun = time.thread_time()
        done = frozen.copy_pages(16)
        pieces = max(pieces, time.thread_time() - begun)
    times.append(time.thread_time())
    encoded = frozen.encode()
    times.append(time.thread_time())
    frozen.durable({e.position: FileRef(path="x", length=len(e.data)) for e in encoded})
    store.completed(number)
    freeze, copy, encode = (1e3 * (b - a) for a, b in pairwise(times))
    figures.append(
        {
            "freeze_ms": freeze,
            "copy_ms": copy,
            "longest_piece_ms": 1e3 * pieces,
            "encode_ms": encode,
            "rows": sum(e.entry.rows for e in encoded),
            "bytes": sum(len(e.data) for e in encoded),
            "segments": len(frozen.snapshot().segments),
        }
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=16_384)
    parser.add_argument("--memory", type=float, default=1024, help="managed memory in MB")
    parser.add_argument("--every", type=int, default=2_000_000, help="rows between barriers")
    arguments = parser.parse_args()
    sink, figures, cpu, done = Sink(), [], [], 0
    with TemporaryDirectory() as directory:
        operator, store = opened(arguments, Path(directory))
        for batch in batches(arguments):
            begun, before = time.thread_time(), sink.cpu
            operator.process_batch(batch, 0, sink)
            cpu.append((time.thread_time() - begun - sink.cpu + before) / batch.num_rows)
            done += batch.num_rows
            if done // arguments.every > len(figures):
                barrier(operator, store, len(figures) + 1, sink, figures)
        held = store.memory_bytes
        store.close()
    half = cpu[len(cpu) // 2 :]
    result = {
        "right": ":".join(map(str, sink.sums)) == reference.running(arguments.rows, arguments.keys, ordered=True),
        "ns_per_row": round(1e9 * float(np.mean(half)), 1),
        "rows_per_cpu_second": round(1 / float(np.mean(half))),
        "held_mb": held >> 20,
        "barriers": len(figures),
        **{f"{name} (median)": round(statistics.median(f[name] for f in figures), 2) for name in figures[0]},
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
