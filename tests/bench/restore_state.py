"""Going on from much state: how soon a running aggregate puts its first rows out, and when it is at full speed. Run.

Python tests/bench/restore_state.py [--keys 10000000] [--root FOLDER or s3://bucket/prefix] [--backend rocksdb remote]

The state is written as a savepoint's files would be; keys come at random, which is the worst case for `remote`.
"""

import argparse
import json
import os
import queue
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import numpy as np
import pyarrow as pa

from penstock.checkpoint.stores import checksum_of, open_store, read_file
from penstock.config.settings import JobSettings
from penstock.core.elements import TS_COLUMN, Batch
from penstock.core.keygroup import ALL_HASHES, HASH_MAX, HASH_MIN
from penstock.core.schema import schema_to_text
from penstock.core.snapshot import FileRef, KeyedStateSnapshot
from penstock.kernels.hashing import hash_columns
from penstock.operators.operator import OperatorMetrics
from penstock.operators.running import RunningAggregateOperator
from penstock.state.budget import MemoryBudget
from penstock.state.frozen import segment_of
from penstock.state.segments import SegmentWriter
from penstock.state.store import KeyedStateRequest, open_keyed_state
from penstock.task.prefetch import Prefetcher
from penstock.task.threads import ParallelReads, ThreadBackground

VALUES = 8
NAMES = [f"v{i}" for i in range(VALUES)]
SCHEMA = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in ("key", *NAMES, TS_COLUMN)])
CONFIG = {"key": ["key"], "aggregates": [{"fn": "sum", "column": name, "alias": f"sum_{name}"} for name in NAMES]}
#: Rows of one file of the state.
PART = 1_000_000
#: Seconds over which a rate is taken, and the part of the best one that is full speed.
SPAN, FULL = 1.0, 0.8


class Out:
    """When the first row came out."""

    first = None

    def batch(self, _):
        if self.first is None:
            self.first = time.monotonic()


def operator_over(store):
    operator = RunningAggregateOperator()
    operator.open(
        SimpleNamespace(
            spec=SimpleNamespace(uid="op", config=CONFIG),
            metrics=OperatorMetrics(),
            input_schemas=(SCHEMA,),
            keyed_state=store,
        )
    )
    return operator


def opened(arguments, backend, directory, snapshot, store):
    limit = int(arguments.memory * (1 << 20))
    return open_keyed_state(
        KeyedStateRequest(
            uid="op",
            snapshots=() if snapshot is None else (snapshot,),
            hash_range=ALL_HASHES,
            settings=JobSettings(state_backend=backend, managed_memory_bytes=limit, remote_local_bytes=arguments.local),
            read=lambda file: read_file(store, file),
            directory=Path(directory),
            writer="run/v/0/0",
            budget=MemoryBudget(limit),
            gather=ParallelReads(ThreadBackground("reads", 8)),
        )
    )


def written(arguments, store):
    """Write the state of all keys, range of hashes by range; returns its snapshot and bytes."""
    with TemporaryDirectory() as directory:
        empty = opened(arguments, "hashmap", directory, None, store)
        operator_over(empty)
        (schema,) = empty.declared().values()
        (name,) = empty.declared()
        empty.close()
    keys = np.arange(arguments.keys)
    hashes = np.concatenate(
        [
            hash_columns(pa.record_batch({"key": pa.array(keys[a : a + PART])}), ("key",))
            for a in range(0, len(keys), PART)
        ]
    )
    order = np.argsort(hashes)
    random, segments = np.random.default_rng(1), []
    for first in range(0, len(order), PART):
        chosen = order[first : first + PART]
        columns = {"__key_hash": hashes[chosen], "key": chosen, "__namespace": np.zeros(len(chosen), np.int64)}
        columns |= {"__deleted": np.zeros(len(chosen), bool), "__seq": np.arange(len(chosen))}
        for field in schema:
            columns.setdefault(field.name, random.integers(1, 1 << 50, len(chosen)))
        writer = SegmentWriter(schema, 1)
        writer.add(pa.table([pa.array(columns[f.name]) for f in schema], schema=schema))
        encoded = writer.finish()
        store.put(f"part-{first}", encoded.data)
        file = FileRef(path=f"part-{first}", length=len(encoded.data), checksum=checksum_of(encoded.data))
        segments.append(segment_of(encoded, file, "savepoint"))
    text = schema_to_text(schema)
    state = {"hash_low": HASH_MIN, "hash_high": HASH_MAX, "segments": tuple(segments)}
    return KeyedStateSnapshot(uid="op", state=name, schema=text, **state), sum(s.file.length for s in segments)


def run(arguments, backend, snapshot, store):
    """Restore, and take in random keys until nothing more is fetched and the time is over."""
    mails, out, marks = queue.SimpleQueue(), Out(), []
    random = np.random.default_rng(2)
    with TemporaryDirectory(dir=arguments.disk) as directory:
        begun = time.monotonic()
        keyed = opened(arguments, backend, directory, snapshot, store)
        operator = operator_over(keyed)
        opened_at = time.monotonic()
        Prefetcher(ThreadBackground("background", 2), mails.put).start_due((keyed,))
        rows, complete, tail = 0, None, None
        while tail is None or time.monotonic() < tail:
            while not mails.empty():
                mails.get()()
            keys = random.integers(0, arguments.keys, arguments.batch)
            columns = [keys, *(np.ones(len(keys), np.int64) for _ in NAMES), np.zeros(len(keys), np.int64)]
            operator.process_batch(
                Batch(pa.RecordBatch.from_arrays([pa.array(c) for c in columns], schema=SCHEMA)), 0, out
            )
            rows += len(keys)
            marks.append((time.monotonic(), rows))
            if tail is None and all(r._been.all() for r in keyed._cold.remote.values()):
                complete = time.monotonic() - begun
                tail = time.monotonic() + arguments.tail
        keyed.close()
    return {"backend": backend, "opened_s": opened_at - begun, "first_output_s": out.first - begun} | {
        "all_fetched_s": complete,
        **speeds(marks, begun),
        "load": os.getloadavg()[0],
    }


def speeds(marks, begun):
    """Return the rate at the end, and from when on it was (nearly) reached."""
    times, rows = np.array([t for t, _ in marks]) - begun, np.array([r for _, r in marks])
    spans = np.arange(times[0], times[-1], SPAN)
    rates = np.diff(np.interp(spans, times, rows)) / SPAN
    last = float(np.median(rates[-4:]))
    full = next((float(at) for at, rate in zip(spans, rates, strict=False) if rate >= FULL * last), None)
    return {"full_speed_s": full, "rows_per_s": last}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--memory", type=float, default=256, help="managed memory in MB")
    parser.add_argument("--local", type=int, default=64 << 30, help="bytes of fetched state on the local disk")
    parser.add_argument("--root", default="", help="folder or s3://bucket/prefix for the state; a temporary folder")
    parser.add_argument("--disk", default=None, help="where local files go")
    parser.add_argument("--tail", type=float, default=10.0, help="seconds to go on for when all has been fetched")
    parser.add_argument("--backend", nargs="+", default=["rocksdb", "remote"])
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        store = open_store(arguments.root or folder)
        begun = time.monotonic()
        snapshot, size = written(arguments, store)
        print(
            json.dumps({"keys": arguments.keys, "bytes": size, "written_s": round(time.monotonic() - begun, 1)}),
            flush=True,
        )
        for backend in arguments.backend:
            figures = run(arguments, backend, snapshot, store)
            print(json.dumps({k: round(v, 2) if isinstance(v, float) else v for k, v in figures.items()}), flush=True)


if __name__ == "__main__":
    main()
