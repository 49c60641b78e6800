"""A savepoint is plain, complete and self-contained."""

import io

import msgspec
import polars as pl
import pyarrow as pa
import pytest

from penstock.checkpoint.manifest_log import Manifest, decode_manifest, encode_manifest
from penstock.checkpoint.memory_store import MemoryStore
from penstock.checkpoint.savepoint_parts import joined_copy, split_for_copy
from penstock.checkpoint.stores import checksum_of, read_file
from penstock.core.errors import SnapshotDamagedError, StorageError
from penstock.core.keygroup import HASH_MAX, HASH_MIN
from penstock.core.schema import schema_to_text
from penstock.core.snapshot import Committable, FileRef, KeyedStateSnapshot, SubtaskSnapshot, Tombstone
from penstock.rpc.messages import SavepointPart, SavepointWritten, SealSavepoint, WriteSavepoint
from penstock.state.cells.accumulators import AccumulatorSpec, PaneTableSpec
from penstock.state.log.segments import SegmentWriter, read_state
from penstock.task.checkpoint.savepoint_copy import seal_savepoint, write_part

SPEC = PaneTableSpec(pa.schema([pa.field("k", pa.int64())]), (AccumulatorSpec("total", "int64", "sum"),))
SCHEMA = SPEC.segment_schema


def segment(store, position, rows):
    """Write rows of (hash, key, pane, total, deleted) as a part of an object."""
    columns = dict.fromkeys(SCHEMA.names)
    rows = sorted(rows)
    filled = {}
    for field in SCHEMA:
        place = {"__key_hash": 0, "k": 1, "__namespace": 2, "total": 3, "__deleted": 4}.get(field.name)
        values = [row[place] for row in rows] if place is not None else [0 if not field.nullable else None] * len(rows)
        filled[field.name] = pa.array(values, field.type)
    assert set(columns) == set(filled)
    writer = SegmentWriter(SCHEMA, position)
    writer.add(pa.table(filled, schema=SCHEMA))
    encoded = writer.finish()
    store.put(f"data/{position}", b"other" + encoded.data)
    ref = FileRef(path=f"data/{position}", offset=5, length=len(encoded.data), checksum=checksum_of(encoded.data))
    return encoded.stored(ref, "w")


def keyed(*segments, tombstones=()):
    return KeyedStateSnapshot(
        uid="totals",
        state="panes",
        schema=schema_to_text(SCHEMA),
        hash_low=HASH_MIN,
        hash_high=HASH_MAX,
        segments=segments,
        tombstones=tombstones,
    )


@pytest.fixture
def source():
    return MemoryStore("job")


@pytest.fixture
def target():
    return MemoryStore("savepoint")


@pytest.fixture
def write(source, target):
    def run(manifest, most=1):
        parts = [write_part(part, source, target) for part in split_for_copy(manifest, most)]
        return seal_savepoint(joined_copy(manifest, parts), source, target, target.uri)

    return run


def manifest(source, **changes):
    output = Committable(
        id="out/r/0/3",
        uid="out",
        run_id="r",
        subtask=0,
        checkpoint_id=3,
        files=(FileRef(path="pending/x", offset=1, length=3, checksum=checksum_of(b"abc")), FileRef(inline=b"in")),
    )
    source.put("pending/x", b"?abc?")
    first = segment(source, 1, [(10, 1, 0, 100, False), (20, 2, 0, 200, False), (30, 3, 5, 300, False)])
    second = segment(source, 2, [(10, 1, 0, 111, False), (30, 3, 5, 0, True)])
    third = segment(source, 4, [(40, 4, 9, 400, False)])
    stone = Tombstone(position=3, hash_low=15, hash_high=25, namespace_low=0, namespace_high=4)
    subtasks = (
        SubtaskSnapshot(vertex_id="v", subtask=0, keyed=(keyed(first, second, third, tombstones=(stone,)),)),
        SubtaskSnapshot(vertex_id="s", subtask=0, committables=(output,)),
    )
    values = {
        "kind": "checkpoint",
        "sequence": 5,
        "job_id": "j",
        "job_name": "name",
        "run_id": "r",
        "generation": 1,
        "nonce": "n",
        "created_ms": 1,
        "checkpoint_id": 3,
        "subtasks": subtasks,
        "pending": (output,),
    }
    return Manifest(**{**values, **changes})


def test_a_savepoint_is_plain_parquet_that_anything_reads(write, source, target):
    ref = write(manifest(source))
    data = target.read("totals/panes/part-00000-00000.parquet")
    rows = pl.read_parquet(io.BytesIO(data)).select("k", "total").sort("k").rows()
    assert rows == [(1, 111), (4, 400)]
    written = decode_manifest(target.read(ref.path))
    assert written.kind == "savepoint"
    (state,) = written.subtasks[0].keyed
    assert [s.file.path for s in state.segments] == ["totals/panes/part-00000-00000.parquet"]
    assert state.tombstones == ()
    assert state.segments[0].rows == 2


def test_a_native_one_needs_no_file_of_the_job(write, source, target):
    """The job's folder may be removed, and its checkpoints may be cleaned up."""
    made = manifest(source, native=True)
    before = [table.to_pylist() for table in read_state(made.subtasks[0].keyed[0], lambda ref: read_file(source, ref))]
    ref = write(made)
    for path in source.list(""):
        source.delete(path)
    written = decode_manifest(target.read(ref.path))
    (state,) = written.subtasks[0].keyed
    assert len(state.segments) == 3, "its files are those of the checkpoint"
    assert [table.to_pylist() for table in read_state(state, lambda file: read_file(target, file))] == before
    assert [read_file(target, file) for file in written.pending[0].files] == [b"abc", b"in"]


def test_it_holds_its_own_copy_of_pending_output(write, source, target):
    write(manifest(source))
    written = decode_manifest(target.read("manifest.json"))
    (output,) = written.pending
    assert output == written.subtasks[1].committables[0]
    file, inline = output.files
    assert target.read(file.path, file.offset, file.length) == b"abc"
    assert inline.inline == b"in"
    assert target.list("pending/") == [file.path]


def two_subtasks(source):
    return tuple(
        SubtaskSnapshot(vertex_id="v", subtask=n, keyed=(keyed(segment(source, 10 + n, [(n, n, 0, n, False)])),))
        for n in (3, 4)
    )


def test_two_subtasks_of_a_state_have_a_file_each(write, source, target):
    write(manifest(source, subtasks=two_subtasks(source), pending=()))
    assert target.list("totals/panes/") == [f"totals/panes/part-0000{n}-00000.parquet" for n in (3, 4)]


def test_it_is_the_same_in_one_part_and_in_several(write, source):
    """A late writer of an earlier leader, with other parts, changes nothing."""
    made = manifest(source)
    made = msgspec.structs.replace(made, subtasks=(*made.subtasks, *two_subtasks(source)))
    assert len(split_for_copy(made, 9)) == 4
    written = []
    for most in (1, 2, 9):
        folder = MemoryStore("savepoint")
        parts = [write_part(part, source, folder) for part in split_for_copy(made, most)]
        seal_savepoint(joined_copy(made, parts[::-1]), source, folder, folder.uri)
        written.append({key: folder.read(key) for key in folder.list("")})
    assert written[0] == written[1] == written[2]


def test_a_native_one_has_the_files_of_the_checkpoint(write, source, target):
    """With its deletions and tombstones, which readers apply; a file that two subtasks share is copied once."""
    made = manifest(source, native=True)
    shared = msgspec.structs.replace(made.subtasks[0], subtask=7)
    made = msgspec.structs.replace(made, subtasks=(*made.subtasks, shared))
    write(made, most=3)
    sealed = decode_manifest(target.read("manifest.json"))
    (state,), (same,) = sealed.subtasks[0].keyed, sealed.subtasks[2].keyed
    assert sealed.native
    assert state.segments == same.segments
    assert state.tombstones == made.subtasks[0].keyed[0].tombstones
    assert len(target.list("totals/panes/")) == 3
    for segment, before in zip(state.segments, made.subtasks[0].keyed[0].segments, strict=True):
        assert target.read(segment.file.path) == source.read(before.file.path)[5:]
        assert msgspec.structs.replace(segment, file=before.file) == before
    rows = pa.concat_tables(read_state(state, lambda ref: read_file(target, ref)))
    assert rows.select(["k", "total"]).to_pylist() == [{"k": 1, "total": 111}, {"k": 4, "total": 400}]


def test_a_damaged_file_is_named_and_no_manifest_is_written(write, source, target):
    made = manifest(source)
    source.put("data/2", source.read("data/2")[:-1] + b"?")
    with pytest.raises(SnapshotDamagedError, match="data/2 is damaged"):
        write(made)
    assert "manifest.json" not in target.list("")


def test_a_folder_that_holds_a_savepoint_is_refused_but_writing_the_same_again_is_fine(write, source, target):
    write(manifest(source))
    write(manifest(source))
    with pytest.raises(StorageError, match="already holds a savepoint"):
        write(manifest(source, nonce="other"))


def test_the_answer_has_the_part_or_the_error(world, source):
    w = world()
    ids = {"job_id": "j", "savepoint_id": "s", "uri": "memory://x", "checkpoint_root": "memory://x", "job_name": "n"}
    w.store, made = source, manifest(source)
    for broken in (False, True):
        if broken:
            source.delete("data/1")
        w.runtime("sink").handle(WriteSavepoint(manifest=encode_manifest(made), part=2, **ids))
        w.blocking.run_all()
    good, bad = w.of(SavepointPart)
    assert (good.part, good.error, bad.part, bad.manifest) == (2, "", 2, b"")
    assert "data/1 is missing" in bad.error
    w.runtime("sink").handle(SealSavepoint(manifest=good.manifest, **ids))
    w.blocking.run_all()
    (sealed,) = w.of(SavepointWritten)
    assert (sealed.manifest.path, sealed.error) == ("manifest.json", "")
    assert decode_manifest(source.read("manifest.json")).note == "memory://x"
