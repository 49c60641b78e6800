"""What cutting files anew would save a rescale: bytes and CPU of reading ranges, and of writing everything first.

    python -m tests.bench.recut --rows 2000000

One state of two subtasks, in files of all hashes each, becomes that of three: each reads its range of every file, or of
what `repartition` has written of them. Compaction keeps a log at about 8 files of a tier; 512 are what it never leaves.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.checkpoint.local_store import LocalStore
from penstock.checkpoint.manifest_log import Manifest
from penstock.checkpoint.stores import checksum_of
from penstock.core.keygroup import hash_range_of
from penstock.core.schema import schema_to_text
from penstock.core.snapshot import FileRef, KeyedStateSnapshot, SubtaskSnapshot
from penstock.graph.restore_plan import clip_keyed
from penstock.kernels.keys.hashing import hash_columns
from penstock.snapshots.access.opening import Snapshot, open_snapshot
from penstock.snapshots.rewrite.repartition import repartition
from penstock.state.cells.accumulators import AccumulatorSpec, PaneTableSpec
from penstock.state.log.segment_file import SegmentFile
from penstock.state.log.segments import SegmentWriter, read_visible

SPEC = PaneTableSpec(pa.schema([pa.field("user_id", pa.int64())]), (AccumulatorSpec("sum_amount", "int64", "sum"),))
GROUPS, BEFORE, AFTER = 1024, 2, 3


def segment(store, keys, number):
    """Write the rows of some keys as one file of the log."""
    schema = SPEC.segment_schema
    hashes = hash_columns(pa.record_batch({"user_id": pa.array(keys)}), ("user_id",))
    order = np.argsort(hashes)
    values = {"__key_hash": hashes[order], "user_id": keys[order], "__deleted": np.zeros(len(keys), np.bool_)}
    columns = [pa.array(values.get(f.name, np.arange(len(keys)) * 1_000_003 % 9_973)).cast(f.type) for f in schema]
    place = schema.get_field_index("__namespace")
    columns[place] = pa.array(np.zeros(len(keys), np.int64))
    writer = SegmentWriter(schema, number + 1, wide=True)
    writer.add(pa.table(columns, schema=schema))
    made = writer.finish()
    path = f"data/{number:05d}.parquet"
    store.put(path, made.data)
    file = FileRef(path=path, length=len(made.data), checksum=checksum_of(made.data))
    return made.stored(file, "w")


def state_of(store, rows, files):
    """Return the manifest's parts of a state of `files` files for each of two subtasks."""
    keys = np.random.default_rng(1).permutation(rows).astype(np.int64)
    segments = tuple(segment(store, part, n) for n, part in enumerate(np.array_split(keys, files)))
    held = []
    for subtask in range(BEFORE):
        own = hash_range_of(subtask, BEFORE, GROUPS)
        whole = KeyedStateSnapshot(
            uid="totals", state="panes", schema=schema_to_text(SPEC.segment_schema),
            hash_low=own.low, hash_high=own.high, segments=segments,
        )  # fmt: skip
        held.append(SubtaskSnapshot(vertex_id="v", subtask=subtask, keyed=(clip_keyed(whole, own),)))
    return tuple(held)


def restored(store, subtasks):
    """Read the state as three subtasks: rows, bytes read, requests and CPU seconds of all, and of the longest."""
    found = {"rows": 0, "bytes": 0, "requests": 0}

    def read(ref):
        found["bytes"] += ref.length
        found["requests"] += 1
        return store.read(ref.path, ref.offset, ref.length)

    times = []
    for subtask in range(AFTER):
        own = hash_range_of(subtask, AFTER, GROUPS)
        began = time.process_time()
        for part in subtasks:
            for state in part.keyed:
                clipped = clip_keyed(state, own)
                if clipped is not None:
                    files = [SegmentFile(segment, read) for segment in clipped.segments]
                    found["rows"] += sum(t.num_rows for file in files for t in read_visible(file, (), own))
        times.append(time.process_time() - began)
    return {**found, "cpu_s": round(sum(times), 2), "longest_s": round(max(times), 2)}


def measured(rows, files):
    """Return what a rescale reads with and without a cut before it."""
    with tempfile.TemporaryDirectory() as folder:
        store = LocalStore(str(Path(folder) / "job"))
        subtasks = state_of(store, rows, files)
        manifest = Manifest(
            kind="checkpoint", sequence=1, job_id="0" * 32, job_name="job", run_id="r", generation=1, nonce="n",
            created_ms=0, checkpoint_id=1, key_groups=GROUPS, subtasks=subtasks,
        )  # fmt: skip
        as_it_is = restored(store, subtasks)
        began = time.process_time()
        uri = repartition(Snapshot("m", store, manifest), str(Path(folder) / "cut"))
        cut = round(time.process_time() - began, 2)
        target = LocalStore(str(Path(folder) / "cut"))
        anew = restored(target, open_snapshot(uri).manifest.subtasks)
        assert as_it_is["rows"] == anew["rows"] == rows
        size = sum(path.stat().st_size for path in (Path(folder) / "job").rglob("*.parquet"))
        return {"files": files, "state_bytes": size, "as it is": as_it_is, "cut_cpu_s": cut, "cut before": anew}


def main():
    """Print one line of JSON for each number of files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--files", type=int, nargs="*", default=[1, 8, 64, 512])
    given = parser.parse_args()
    measured(50_000, 2)  # compiles the kernels
    for files in given.files:
        print(json.dumps(measured(given.rows, files)))


if __name__ == "__main__":
    main()
