"""What docs/examples read of a checkpoint and a savepoint, without penstock, is what the engine put there.

The checkpoint has several segments per subtask, one of them inline, closed panes (tombstones) and rows changed later;
the log also has an entry of a leader that had been replaced.
"""

import importlib.util
import re

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from documents import ROOT, blocks, prose, rows

from penstock.checkpoint.local_store import LocalStore
from penstock.checkpoint.manifest_log import Manifest, decode_manifest, encode_manifest
from penstock.checkpoint.stores import checksum_of, open_store
from penstock.config.settings import JobSettings
from penstock.core.keygroup import hash_range_of
from penstock.core.snapshot import Committable, FileRef, KeyedStateSnapshot, Segment, SubtaskSnapshot, Tombstone
from penstock.kernels.keys.hashing import hash_columns
from penstock.kernels.keys.key_columns import fixed_column, key_columns
from penstock.state.cells.accumulators import AccumulatorInput, AccumulatorSpec, PaneTableSpec
from penstock.state.memory.budget import MemoryBudget
from penstock.state.memory.limits import PRODUCTION
from penstock.state.state_backend import KeyedStateRequest
from penstock.state.store import open_keyed_state
from penstock.task.checkpoint.savepoint_copy import write_savepoint

SPEC = PaneTableSpec(pa.schema([pa.field("user_id", pa.int64())]), (AccumulatorSpec("sum_amount", "int64", "sum"),))
NAME = re.compile("`([^`]+)`")
PANES = (0, 10_000_000, 20_000_000)


def example(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs/examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def manifest_of(kind, subtasks, **more):
    fields = {
        "kind": kind, "sequence": 3, "job_id": "0" * 32, "job_name": "job", "run_id": "r", "generation": 1,
        "nonce": "n", "created_ms": 0, "checkpoint_id": 2, "key_groups": 1024, "subtasks": tuple(subtasks),
    }  # fmt: skip
    return Manifest(**{**fields, **more})


def cut_of(subtask, store, directory, model):
    """Run one subtask's table through updates, freezes and a closed pane; return its snapshot."""
    own = hash_range_of(subtask, 2, 1024)
    state = open_keyed_state(
        KeyedStateRequest(
            uid="totals", snapshots=(), hash_range=own, settings=JobSettings(), read=lambda ref: store.read(ref.path),
            directory=directory, writer=f"r/v/{subtask}/0", budget=MemoryBudget(1 << 30),
            limits=PRODUCTION.changed(whole_rows=0),
        )
    )  # fmt: skip
    table = state.pane_table("panes", SPEC)
    random = np.random.default_rng(subtask)
    for turn in range(4):
        batch = pa.record_batch({"user_id": pa.array(random.integers(0, 500, 2000))})
        hashes = hash_columns(batch, ("user_id",))
        batch = batch.filter(pa.array((hashes >= own.low) & (hashes <= own.high)))
        panes = random.choice(np.array(PANES[turn // 2 :], np.int64), batch.num_rows)
        amounts = fixed_column(pa.array(np.full(batch.num_rows, turn + 1)))
        given = AccumulatorInput(amounts.values, amounts.bitmap, amounts.bit_offset)
        table.update(key_columns(batch, ("user_id",)), hash_columns(batch, ("user_id",)), panes, [given])
        for key, pane in zip(batch.column(0).to_pylist(), panes.tolist(), strict=True):
            count, total = model.get((key, pane), (0, 0))
            model[key, pane] = count + 1, total + turn + 1
        if turn == 2:
            table.drop_below(PANES[1])
            for key in [key for key in model if key[1] < PANES[1]]:
                del model[key]
        (frozen,) = state.freeze()
        while not frozen.copy_pages(1):
            pass
        files = {}
        for encoded in frozen.encode():
            path = f"data/{subtask}-{encoded.position}.pack"
            store.put(path, b"other bytes" + encoded.data)
            files[encoded.position] = FileRef(
                path=path, offset=11, length=len(encoded.data), checksum=checksum_of(encoded.data)
            )
        frozen.durable(files)
        snapshot = frozen.snapshot()
    state.close()
    return snapshot


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Return a job's folder with one checkpoint, and what the checkpoint means."""
    folder, model = tmp_path_factory.mktemp("root"), {}
    store = LocalStore(str(folder / "job"))
    states = [cut_of(subtask, store, folder / f"work{subtask}", model) for subtask in range(2)]
    small = states[1].segments[-1].file
    data = store.read(small.path, small.offset, small.length)
    inline = msgspec.structs.replace(states[1].segments[-1], file=FileRef(inline=data, length=len(data)))
    states[1] = msgspec.structs.replace(states[1], segments=(*states[1].segments[:-1], inline))
    cut = [SubtaskSnapshot(vertex_id="v", subtask=n, keyed=(state,)) for n, state in enumerate(states)]
    assert all(len(state.segments) > 1 and state.tombstones for state in states)
    entries = [
        manifest_of("seal", (), sequence=1, generation=2),
        manifest_of("checkpoint", (), sequence=2, generation=1),
        manifest_of("checkpoint", cut, sequence=3, generation=2),
        manifest_of("savepoint", (), sequence=4, generation=2),
    ]
    for entry in entries:
        store.put(f"manifests/{entry.sequence:020d}.json", encode_manifest(entry))
    return folder / "job", model


def meant(table):
    columns = [table[name].to_pylist() for name in ("user_id", "__namespace", "__rows", "sum_amount")]
    found = {(key, pane): (count, total) for key, pane, count, total in zip(*columns, strict=True)}
    assert len(found) == table.num_rows
    return found


def test_a_checkpoint_read_by_sql(job):
    folder, model = job
    assert meant(example("read_checkpoint").read_state(folder, "totals", ["user_id"])) == model


def test_the_page_prints_the_query_of_the_example():
    query = example("read_checkpoint").QUERY.format(keys="user_id").strip()
    assert query in [block.strip() for block in blocks("docs/reference/snapshot-format.md", "sql")]


def test_a_savepoint_read_by_duckdb_and_polars(job, tmp_path):
    folder, model = job
    manifest = decode_manifest((folder / "manifests" / f"{3:020d}.json").read_bytes())
    write_savepoint(manifest, open_store(str(folder)), open_store(str(tmp_path / "sp")))
    reader = example("read_savepoint")
    for table in (
        reader.with_duckdb(str(tmp_path / "sp"), "totals").to_arrow_table(),
        reader.with_polars(str(tmp_path / "sp"), "totals").collect().to_arrow(),
    ):
        starts = [int(time.timestamp() * 1_000_000) for time in utc(table["pane_start"])]
        found = zip(table["user_id"].to_pylist(), starts, table["__rows"].to_pylist(), strict=True)
        assert {(key, pane): count for key, pane, count in found} == {key: value[0] for key, value in model.items()}
    for number, block in enumerate(blocks("docs/reference/snapshot-format.md", "python")):
        text = re.sub(r'savepoint = ".*"', f"savepoint = {str(tmp_path / 'sp')!r}", block)
        exec(compile(text, f"snapshot-format#{number}", "exec"), {})  # noqa: S102 - our own page


def utc(column):
    return pa.chunked_array(column).cast(pa.timestamp("us", tz="UTC")).to_pylist()


def test_the_page_names_every_field():
    text = prose("docs/reference/snapshot-format.md")
    table = {
        name for cells in rows("docs/reference/snapshot-format.md", "The manifest") for name in NAME.findall(cells[0])
    }
    assert table == set(Manifest.__struct_fields__)
    said = {part for name in NAME.findall(text) for part in name.split("..")}
    for struct in (Segment, Tombstone, FileRef, KeyedStateSnapshot, Committable, SubtaskSnapshot):
        assert set(struct.__struct_fields__) <= said, struct
