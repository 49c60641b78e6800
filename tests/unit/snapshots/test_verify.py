"""`fsck` finds every damage that is planted, names the file, and finds nothing where nothing is wrong."""

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.checkpoint.local_store import LocalStore
from penstock.checkpoint.manifest_log import key_of
from penstock.checkpoint.stores import checksum_of
from penstock.core.snapshot import FileRef
from penstock.snapshots.access.opening import open_snapshot
from penstock.snapshots.access.verify import segment_problems, verify


def changed(manifest, change):
    """Return the manifest with every segment passed through `change(state, segment)`."""
    subtasks = tuple(
        msgspec.structs.replace(
            part,
            keyed=tuple(
                msgspec.structs.replace(k, segments=tuple(change(k, s) for s in k.segments)) for k in part.keyed
            ),
        )
        for part in manifest.subtasks
    )
    return msgspec.structs.replace(manifest, subtasks=subtasks)


def files(job):
    return sorted((job.folder / "data" / "r").iterdir())


def problems(report):
    return sorted({(damage.problem, damage.state) for damage in report.damaged})


def test_a_whole_job_has_nothing(job):
    report = verify(str(job.folder))
    assert (report.damaged, report.unreferenced, report.unknown) == ([], [], [])
    assert report.manifests == 2
    assert report.files == len(files(job)) + 2
    assert report.size_bytes > 0


def test_a_savepoint_too(job, tmp_path):
    folder = job.savepoint(job.checkpoint(), tmp_path / "sp")
    report = verify(folder)
    assert (report.damaged, report.unknown, report.manifests) == ([], [], 1)
    (tmp_path / "sp" / "people" / "notes.txt").write_text("mine")
    assert verify(folder).unknown == ["people/notes.txt"]


@pytest.mark.parametrize("entry", ["removed", "kept"])
def test_what_retention_removes_meanwhile_is_no_damage(job, monkeypatch, entry):
    """The oldest checkpoint's own file goes when it is about to be read: behind the entry that names it, or not."""
    oldest, own = key_of(1), "pending/r/0-1.pack"
    read = LocalStore.read

    def late(store, key, *part):
        if key == own:
            (job.folder / own).unlink()
            if entry == "removed":
                (job.folder / oldest).unlink()
        return read(store, key, *part)

    monkeypatch.setattr(LocalStore, "read", late)
    found = {damage.file for damage in verify(str(job.folder)).damaged}
    assert found == (set() if entry == "removed" else {f"file://{job.folder / own}"})


@pytest.mark.parametrize("place", [0, -1])
def test_a_truncated_file(job, place):
    path = files(job)[place]
    path.write_bytes(path.read_bytes()[:-20])
    (found,) = {(d.file.partition(" at ")[0], d.problem.partition(": ")[2]) for d in verify(str(job.folder)).damaged}
    assert found[0] == f"file://{path}"
    assert "bytes at 6" in found[1]


@pytest.mark.parametrize("place", [6, 40, -1])
def test_a_flipped_byte(job, place):
    path = files(job)[0]
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    report = verify(str(job.folder))
    assert {damage.file for damage in report.damaged} == {f"file://{path} at 6"}
    assert all("is damaged: checksum" in damage.problem for damage in report.damaged)
    assert len(report.damaged) == 2, "both checkpoints name it"
    remedies = [damage.remedy for damage in report.damaged]
    assert "while newer checkpoints are whole" in remedies[0]
    assert "restore the file" in remedies[1]


def test_a_missing_file(job):
    path = files(job)[-1]
    path.unlink()
    (damage,) = verify(str(job.folder)).damaged
    assert damage.problem == f"file://{path} is missing"


def test_missing_output(job):
    (job.folder / "pending" / "r" / "0-2.pack").unlink()
    (damage,) = verify(str(job.folder)).damaged
    assert damage.state == "out"
    assert damage.problem.endswith("is missing")


def test_output_that_is_no_arrow_file(job):
    newest = job.checkpoint()
    data = b"no arrow at all"
    output = msgspec.structs.replace(newest.pending[0], files=(FileRef(inline=data, length=len(data)),))
    job.append(msgspec.structs.replace(newest, pending=(output,)))
    (damage,) = verify(str(job.folder), checkpoint=newest.sequence).damaged
    assert "is not an Arrow IPC file" in damage.problem
    assert damage.file.endswith("(inline)")


def test_damage_to_a_manifest(job, tmp_path):
    (job.folder / "manifests" / f"{2:020d}.json").write_bytes(b"{")
    (damage,) = verify(str(job.folder)).damaged
    assert damage.file.endswith(f"{2:020d}.json")
    assert "cannot be read" in damage.problem


def rewritten(job, change, **segment_changes):
    """Write the file of the newest `profile` segment anew, with a checksum that fits."""
    newest = job.checkpoint()
    done = []

    def one(state, segment):
        if state.state != "profile" or done:
            return segment
        done.append(segment)
        path = job.folder / segment.file.path
        table = change(pq.read_table(pa.BufferReader(path.read_bytes()[6:])))
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        data = sink.getvalue().to_pybytes()
        ref = FileRef(inline=data, length=len(data), checksum=checksum_of(data))
        return msgspec.structs.replace(segment, file=ref, **segment_changes)

    job.append(changed(newest, one))
    return verify(str(job.folder), checkpoint=newest.sequence)


def test_rows_that_are_gone(job):
    report = rewritten(job, lambda table: table.slice(0, table.num_rows - 3))
    assert any("rows, but its manifest says" in problem for problem, _ in problems(report))
    assert {state for _, state in problems(report)} == {"people/profile"}


def test_rows_out_of_order(job):
    report = rewritten(job, lambda table: table.take(list(reversed(range(table.num_rows)))))
    assert [problem for problem, _ in problems(report)] == ["is not sorted by __key_hash"]


def test_timers_are_sorted_within_a_row_group(job, tmp_path):
    users = list(range(20_000))
    for subtask in job.subtasks:
        own = [user for user, mine in zip(users, subtask.mine(users), strict=True) if mine]
        slots = subtask.rows.upsert(*subtask.hashed(own)).copy()
        times = np.array([user * 7919 % 1_000_003 for user in own])
        subtask.timers.change(slots, times, np.zeros(len(own), np.bool_))
    folder = job.savepoint(job.checkpoint(), tmp_path / "sp")
    assert verify(folder).damaged == []
    (first, _) = open_snapshot(folder).manifest.subtasks
    (state,) = [state for state in first.keyed if state.state == "__timers_event"]
    (segment,) = state.segments
    data = (tmp_path / "sp" / segment.file.path).read_bytes()
    assert list(segment_problems(data, state, segment)) == []
    table = pq.read_table(pa.BufferReader(data))
    sink = pa.BufferOutputStream()
    pq.write_table(table.take(pa.array([1, 0, *range(2, table.num_rows)])), sink, row_group_size=8192)
    assert list(segment_problems(sink.getvalue().to_pybytes(), state, segment)) == ["is not sorted by __key_hash"]


def test_a_hash_that_is_not_its_keys(job):
    def moved(table):
        ids = table["user_id"].to_pylist()
        return table.set_column(1, table.schema.field(1), pa.array([ids[0] + 1_000_000, *ids[1:]], pa.int64()))

    (found,) = problems(rewritten(job, moved))
    assert found[0] == "has 1 rows whose __key_hash does not match their key, the first is row 1"


def test_a_range_that_is_wrong(job):
    (found,) = problems(rewritten(job, lambda table: table, hash_min=5))
    assert "has __key_hash from" in found[0]
    assert "its manifest says 5 to" in found[0]


def test_other_columns(job):
    def other_type(table):
        place = table.schema.get_field_index("orders")
        return table.set_column(place, table.schema.field(place).with_type(pa.string()), [["x"] * table.num_rows])

    for change in (lambda table: table.drop_columns(["user_id"]), other_type):
        (found,) = problems(rewritten(job, change))
        assert "has the columns (" in found[0]


def test_columns_of_an_older_version_of_the_job_are_fine(job):
    assert rewritten(job, lambda table: table.drop_columns(["note"])).damaged == []


def test_bytes_that_are_no_parquet(job):
    newest = job.checkpoint()
    job.append(changed(newest, lambda k, s: msgspec.structs.replace(s, file=FileRef(inline=b"no parquet", length=10))))
    found = problems(verify(str(job.folder), checkpoint=newest.sequence))
    assert found
    assert all("is not a Parquet file" in problem for problem, _ in found)


def test_two_owners_of_one_hash(job):
    newest = job.checkpoint()
    parts = [
        msgspec.structs.replace(
            part, keyed=tuple(msgspec.structs.replace(k, hash_low=-5, hash_high=5) for k in part.keyed)
        )
        for part in newest.subtasks
    ]
    job.append(msgspec.structs.replace(newest, subtasks=tuple(parts)))
    found = problems(verify(str(job.folder), checkpoint=newest.sequence))
    assert ("says that two subtasks own the hashes -5 to 5", "totals/panes") in found


def test_files_nobody_names(job):
    (job.folder / "data" / "r" / "old.pack").write_bytes(b"left behind")
    (job.folder / "notes.txt").write_text("mine")
    (job.folder / "lease.json").write_text("{}")
    report = verify(str(job.folder))
    assert (report.unreferenced, report.unknown) == (["data/r/old.pack"], ["notes.txt"])
    assert report.damaged == []
