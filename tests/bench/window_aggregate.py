"""Rows per CPU-second of the keyed path: hash, split, window operator, freeze and encode. Run.

Python tests/bench/window_aggregate.py
"""

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import numpy as np
import pyarrow as pa

from penstock.config.settings import JobSettings
from penstock.core.elements import TS_COLUMN, Barrier, Batch, Watermark
from penstock.core.keygroup import ALL_HASHES
from penstock.kernels.keys.hashing import hash_columns
from penstock.kernels.rows.key_group_split import split_by_key_group, take_split
from penstock.operators.operator import OperatorMetrics
from penstock.operators.windows.window_aggregate import WindowAggregateOperator
from penstock.state.memory.budget import MemoryBudget
from penstock.state.state_backend import KeyedStateRequest
from penstock.state.store import open_keyed_state


class Sink:
    rows = 0

    def batch(self, batch):
        self.rows += batch.num_rows

    def watermark(self, watermark):
        pass


def batches(kind, keys, rows, batch_rows, seed=7):
    random = np.random.default_rng(seed)
    for first in range(0, rows, batch_rows):
        n = min(batch_rows, rows - first)
        ids = random.integers(0, keys, n)
        columns = {"key": pa.array(ids) if kind == "int" else pa.array([f"user-{i:07d}" for i in ids])}
        columns["value"] = pa.array(random.integers(0, 1000, n))
        if kind == "nullable":
            columns["key"] = pa.array(ids)
            columns["other"] = pa.array(ids % 7, mask=ids % 3 == 0)
            columns["value"] = pa.array(random.integers(0, 1000, n), mask=random.random(n) < 0.1)
        columns[TS_COLUMN] = pa.array((first + np.arange(n)) * 10)
        yield pa.RecordBatch.from_pydict(columns)


def operator(schema, key, window, directory):
    settings = JobSettings(managed_memory_bytes=4 << 30)
    request = KeyedStateRequest(
        uid="w",
        snapshots=(),
        hash_range=ALL_HASHES,
        settings=settings,
        read=lambda file: file.inline,
        directory=directory,
        writer="run/v/0/0",
        budget=MemoryBudget(settings.managed_memory_bytes),
    )
    config = {
        "key": list(key),
        "window": window,
        "aggregates": [
            {"fn": "count", "column": None, "alias": "n"},
            {"fn": "sum", "column": "value", "alias": "total"},
        ],
    }
    made = WindowAggregateOperator()
    made.open(
        SimpleNamespace(
            spec=SimpleNamespace(uid="w", config=config),
            hash_range=ALL_HASHES,
            settings=settings,
            metrics=OperatorMetrics(),
            input_schemas=(schema,),
            keyed_state=open_keyed_state(request),
            restored=(),
        )
    )
    return made


def run(kind, keys, rows, batch_rows, window):
    data = list(batches(kind, keys, rows, batch_rows))
    key = ("key", "other") if kind == "nullable" else ("key",)
    begin = time.process_time()
    for batch in data:
        take_split(batch, *split_by_key_group(hash_columns(batch, key), 1024, 4))
    split = time.process_time() - begin
    with TemporaryDirectory() as folder:
        schema = pa.schema(
            [pa.field(f.name, f.type, f.name in ("value", "other") and kind == "nullable") for f in data[0].schema]
        )
        window_operator, sink = operator(schema, key, window, Path(folder)), Sink()
        begin = time.process_time()
        for batch in data:
            window_operator.process_batch(Batch(batch), 0, sink)
            window_operator.process_watermark(Watermark(int(batch.column(TS_COLUMN)[-1].as_py()) - 1), sink)
        used = time.process_time() - begin
        begin = time.process_time()
        frozen = window_operator.snapshot(Barrier(1), sink).keyed[0]
        froze = time.process_time() - begin
        begin = time.process_time()
        frozen.copy_pages(1 << 30)
        copied = time.process_time() - begin
        begin = time.process_time()
        encoded = frozen.encode()
        encode = time.process_time() - begin
        state = sum(e.entry.rows for e in encoded)
    print(
        f"{kind:9s} keys={keys:<9,} {window['kind']:8s} hash+split+take {rows / split / 1e6:6.1f} M/s"
        f"  window {rows / used / 1e6:6.1f} M/s (out {sink.rows:,})"
        f"  freeze {froze * 1e3:.2f} ms copy {copied * 1e3:.1f} ms encode {encode * 1e3:.0f} ms of {state:,} rows"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--batch", type=int, default=32_768)
    chosen = parser.parse_args()
    tumbling = {"kind": "tumbling", "size_us": 10_000_000}
    sliding = {"kind": "sliding", "size_us": 10_000_000, "slide_us": 2_000_000}
    for kind in ("int", "string", "nullable"):
        for keys in (1_000, 1_000_000):
            for window in (tumbling, sliding):
                run(kind, keys, chosen.rows, chosen.batch, window)


if __name__ == "__main__":
    main()
