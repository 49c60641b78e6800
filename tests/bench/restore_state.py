"""Going on from much state: how soon a keyed operator puts its first rows out, and when it is at full speed. Run.

Python tests/bench/restore_state.py [--keys 10000000] [--root FOLDER or s3://bucket/prefix] [--backend rocksdb remote]
    [--operator running | process] [--copies]

The state is written as a savepoint's files would be; keys come at random, which is the worst case for `remote`. A
process function has one value of eight numbers and one timer a key, at any time of a month; event time goes on by a
second a batch. With `--copies` it is read from the store, then from local copies, as after a restart on the same
TaskManager.
"""

import argparse
import json
import os
import queue
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

import penstock as ps
from penstock.api.functions.process_functions import compile_process
from penstock.checkpoint.local_copies import CopyPlace, LocalCopies, StateFiles
from penstock.checkpoint.stores import checksum_of, local_folder, open_store, read_file
from penstock.config.settings import JobSettings
from penstock.core.clock import SystemClock
from penstock.core.elements import TS_COLUMN, Batch, Watermark
from penstock.core.keygroup import ALL_HASHES, HASH_MAX, HASH_MIN
from penstock.core.schema import schema_to_text
from penstock.core.snapshot import FileRef, KeyedStateSnapshot
from penstock.kernels.keys.hashing import hash_columns
from penstock.operators.aggregates.running_operators import RunningAggregateOperator
from penstock.operators.operator import OperatorMetrics
from penstock.operators.process.keyed_process import KeyedProcessOperator
from penstock.state.log.segments import SegmentWriter
from penstock.state.memory.budget import MemoryBudget
from penstock.state.state_backend import KeyedStateRequest
from penstock.state.store import open_keyed_state
from penstock.task.checkpoint.compaction import Prefetcher
from penstock.task.drive.threads import ParallelReads, ThreadBackground

VALUES = 8
NAMES = [f"v{i}" for i in range(VALUES)]
SCHEMA = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in ("key", *NAMES, TS_COLUMN)])
CONFIG = {"key": ["key"], "aggregates": [{"fn": "sum", "column": name, "alias": f"sum_{name}"} for name in NAMES]}
SECOND = 1_000_000
#: Timers lie within it.
MONTH = 30 * 86_400 * SECOND
#: Rows a process function is given at first, and how long it may take for what it is given.
LEAST_ROWS, PIECE_S = 64, 0.01
#: Rows of one file of the state.
PART = 1_000_000
#: Seconds over which a rate is taken, and the part of the best one that is full speed.
SPAN, FULL = 1.0, 0.8


class Out:
    """When the first row came out, and the first watermark."""

    first = first_mark = None

    def batch(self, _):
        if self.first is None:
            self.first = time.monotonic()

    def watermark(self, _):
        if self.first_mark is None:
            self.first_mark = time.monotonic()


class Sums(NamedTuple):
    v0: int
    v1: int
    v2: int
    v3: int
    v4: int
    v5: int
    v6: int
    v7: int


class Total(NamedTuple):
    key: int
    v0: int


class Function(ps.KeyedProcessFunction):
    """Adds up, and registers a timer a month ahead."""

    sums: ps.ValueState[Sums] = ps.value_state()

    def process(self, row, ctx) -> Iterator[Total]:
        old = self.sums.value() or (0,) * VALUES
        new = Sums(*[total + 1 for total in old])
        self.sums.update(new)
        ctx.timers.event(ctx.timestamp + MONTH)
        yield Total(row.key, new.v0)

    def on_timer(self, timestamp, ctx):
        del timestamp
        self.sums.clear()
        return ()


def operator_over(kind, store):
    given = {"metrics": OperatorMetrics(), "input_schemas": (SCHEMA,), "keyed_state": store}
    if kind == "running":
        operator = RunningAggregateOperator()
        operator.open(SimpleNamespace(spec=SimpleNamespace(uid="op", config=CONFIG), **given))
        return operator
    stream = SimpleNamespace(flow=SimpleNamespace(schema=SCHEMA, row_type=None), keys=("key",))
    made = compile_process(Function(), None, {}, stream=stream)
    spec = {"payload": made.spec.payload, "config": made.spec.config, "output_schema": schema_to_text(made.schema)}
    about = {"job_name": "bench", "subtask": 0, "parallelism": 1, "hash_range": ALL_HASHES, "restored": ()}
    operator = KeyedProcessOperator()
    operator.open(SimpleNamespace(spec=SimpleNamespace(uid="op", **spec), clock=SystemClock(), **about, **given))
    return operator


def opened(arguments, backend, directory, snapshots, read):
    limit = int(arguments.memory * (1 << 20))
    return open_keyed_state(
        KeyedStateRequest(
            uid="op",
            snapshots=snapshots,
            hash_range=ALL_HASHES,
            settings=JobSettings(state_backend=backend, managed_memory_bytes=limit, remote_local_bytes=arguments.local),
            read=read,
            directory=Path(directory),
            writer="run/v/0/0",
            budget=MemoryBudget(limit),
            gather=ParallelReads(ThreadBackground("reads", 8)),
        )
    )


def written(arguments, store):
    """Write the state of all keys, range of hashes by range; returns its snapshots and bytes."""
    with TemporaryDirectory() as directory:
        empty = opened(arguments, "hashmap", directory, (), None)
        operator_over(arguments.operator, empty)
        declared = {name: schema for name, schema in empty.declared().items() if name != "__timers_processing"}
        empty.close()
    keys = np.arange(arguments.keys)
    hashes = np.concatenate(
        [
            hash_columns(pa.record_batch({"key": pa.array(keys[a : a + PART])}), ("key",))
            for a in range(0, len(keys), PART)
        ]
    )
    order = np.argsort(hashes)
    written = [one_state(name, schema, (hashes, order), store) for name, schema in declared.items()]
    return tuple(written), sum(s.file.length for state in written for s in state.segments)


def one_state(name, schema, keys, store):
    hashes, order = keys
    random, segments = np.random.default_rng(1), []
    for first in range(0, len(order), PART):
        chosen = order[first : first + PART]
        columns = {"__key_hash": hashes[chosen], "key": chosen, "__namespace": np.zeros(len(chosen), np.int64)}
        if name.startswith("__timers"):
            columns["__namespace"] = random.integers(0, MONTH, len(chosen))
        columns |= {"__deleted": np.zeros(len(chosen), bool), "__seq": np.arange(len(chosen))}
        for field in schema:
            columns.setdefault(field.name, random.integers(1, 1 << 50, len(chosen)))
        writer = SegmentWriter(schema, 1)
        writer.add(pa.table([pa.array(columns[f.name]) for f in schema], schema=schema))
        encoded = writer.finish()
        store.put(f"{name}-{first}", encoded.data)
        file = FileRef(path=f"{name}-{first}", length=len(encoded.data), checksum=checksum_of(encoded.data))
        segments.append(encoded.stored(file, "savepoint"))
    text = schema_to_text(schema)
    state = {"hash_low": HASH_MIN, "hash_high": HASH_MAX, "segments": tuple(segments)}
    return KeyedStateSnapshot(uid="op", state=name, schema=text, **state)


def copied(arguments, snapshots, store, folder):
    """Copy all files of the state, as the worker that wrote them does; return the copies."""
    place = CopyPlace(folder=Path(folder), worker_id="w", most_bytes=1 << 40, store_folder=local_folder(store))
    copies, took = LocalCopies(place), 0.0
    for segment in (segment for state in snapshots if arguments.copies for segment in state.segments):
        data = read_file(store, segment.file)
        started = time.monotonic()
        copies.keep(segment.file.path, data)
        took += time.monotonic() - started
    print(json.dumps({"bytes_copied": copies.held_bytes, "copied_s": round(took, 2)}), flush=True)
    return copies


def run(arguments, backend, snapshots, files):
    """Restore, and take in random keys until nothing more is fetched and the time is over."""
    mails, out, marks = queue.SimpleQueue(), Out(), []
    random = np.random.default_rng(2)
    reading = []

    def read(ref):
        started = time.monotonic()
        data = files.read(ref)
        reading.append(time.monotonic() - started)
        return data

    with TemporaryDirectory(dir=arguments.disk) as directory:
        begun = time.monotonic()
        keyed = opened(arguments, backend, directory, snapshots, read)
        operator = operator_over(arguments.operator, keyed)
        opened_at = time.monotonic()
        Prefetcher(ThreadBackground("background", 2), mails.put).start_due((keyed,))
        rows, complete, tail, now = 0, None, None, 0
        size = arguments.batch if arguments.operator == "running" else LEAST_ROWS
        while tail is None or time.monotonic() < tail:
            while not mails.empty():
                mails.get()()
            keys = random.integers(0, arguments.keys, size)
            columns = [keys, *(np.ones(len(keys), np.int64) for _ in NAMES), np.full(len(keys), now)]
            started = time.monotonic()
            operator.process_batch(
                Batch(pa.RecordBatch.from_arrays([pa.array(c) for c in columns], schema=SCHEMA)), 0, out
            )
            rows += len(keys)
            if arguments.operator == "process":  # as `task.drive.batch_sizer` does
                fits = time.monotonic() - started < PIECE_S
                size = min(arguments.batch, 2 * size) if fits else max(LEAST_ROWS, size // 2)
                now += SECOND
                operator.process_watermark(Watermark(now), out)
            marks.append((time.monotonic(), rows))
            if tail is None and all(r.fetch_ranges.requested.all() for r in keyed._cold.remote):
                complete = time.monotonic() - begun
                tail = time.monotonic() + arguments.tail
        keyed.close()
    return {"backend": backend, "opened_s": opened_at - begun, "first_output_s": out.first - begun} | {
        "first_watermark_s": None if out.first_mark is None else out.first_mark - begun,
        "all_fetched_s": complete,
        "reads_s": sum(reading),
        "bytes_of_copies": files.local_bytes,
        "bytes_of_the_store": files.remote_bytes,
        **speeds(marks, begun),
        "load": os.getloadavg()[0],
    }


def speeds(marks, begun):
    """Return the rate at the end, and from when on it was (nearly) reached."""
    times, rows = np.array([t for t, _ in marks]) - begun, np.array([r for _, r in marks])
    soon = {f"rows_{s}s": int(np.interp(s, times, rows, left=0)) for s in (10, 60) if s < times[-1]}
    spans = np.arange(times[0], times[-1], SPAN)
    rates = np.diff(np.interp(spans, times, rows)) / SPAN
    last = float(np.median(rates[-4:]))
    full = next((float(at) for at, rate in zip(spans, rates, strict=False) if rate >= FULL * last), None)
    return {"first_batch_s": float(times[0]), **soon, "full_speed_s": full, "rows_per_s": last}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--operator", choices=["running", "process"], default="running")
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--memory", type=float, default=256, help="managed memory in MB")
    parser.add_argument("--local", type=int, default=64 << 30, help="bytes of fetched state on the local disk")
    parser.add_argument("--root", default="", help="folder or s3://bucket/prefix for the state; a temporary folder")
    parser.add_argument("--disk", default=None, help="where local files go")
    parser.add_argument("--copies", action="store_true", help="read local copies of the files")
    parser.add_argument("--tail", type=float, default=10.0, help="seconds to go on for when all has been fetched")
    parser.add_argument("--backend", nargs="+", choices=["hashmap", "rocksdb", "remote"], default=["rocksdb", "remote"])
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        store = open_store(arguments.root or folder)
        begun = time.monotonic()
        snapshots, size = written(arguments, store)
        print(
            json.dumps({"keys": arguments.keys, "bytes": size, "written_s": round(time.monotonic() - begun, 1)}),
            flush=True,
        )
        with TemporaryDirectory(dir=arguments.disk) as place:
            copies = copied(arguments, snapshots, store, place)
            ways = [LocalCopies(None), copies] if arguments.copies else [copies]
            for backend, way in ((backend, way) for backend in arguments.backend for way in ways):
                figures = run(arguments, backend, snapshots, StateFiles(store, way))
                rounded = {k: round(v, 2) if isinstance(v, float) else v for k, v in figures.items()}
                print(json.dumps(rounded), flush=True)


if __name__ == "__main__":
    main()
