"""What `ps.snapshots.read` shows is what the tables held: of checkpoints and savepoints, lazily."""

import msgspec
import polars as pl
import pytest

import penstock as ps
from penstock.core.errors import NotFoundError, SnapshotDamagedError, UsageError


def panes(frame):
    rows = frame.collect().iter_rows(named=True)
    return {(r["user_id"], r["__namespace"]): (r["__rows"], r["sum_amount"]) for r in rows}


def profiles(frame):
    return {r["user_id"]: (r["orders"], r["note"]) for r in frame.collect().iter_rows(named=True)}


def test_the_newest_checkpoint(job):
    folder = str(job.folder)
    frame = ps.snapshots.read(folder, uid="totals")
    assert panes(frame) == job.panes
    assert frame.collect_schema().names() == ["user_id", "__namespace", "__rows", "sum_amount"]
    assert profiles(ps.snapshots.read(folder, uid="people", name="profile")) == job.profiles


def test_a_savepoint_reads_as_its_checkpoint_did(job, tmp_path):
    folder = job.savepoint(job.checkpoint(), tmp_path / "sp")
    for uri in (folder, f"{folder}/", f"{folder}/manifest.json"):
        assert panes(ps.snapshots.read(uri, uid="totals", name="panes")) == job.panes
    assert profiles(ps.snapshots.read(folder, uid="people")) == job.profiles


def test_an_older_checkpoint_by_sequence_or_manifest(job):
    first = {i: (i, f"n{i}") for i in range(250)}
    assert profiles(ps.snapshots.read(str(job.folder), uid="people", name="profile", checkpoint=1)) == first
    manifest = f"{job.folder}/manifests/{1:020d}.json"
    assert profiles(ps.snapshots.read(manifest, uid="people", name="profile")) == first


def test_the_checkpoint_root_of_one_job_will_do(job):
    assert profiles(ps.snapshots.read(str(job.root), uid="people", name="profile")) == job.profiles
    other = job.root / "other" / "manifests"
    other.mkdir(parents=True)
    (other / f"{1:020d}.json").write_bytes(b"{}")
    with pytest.raises(UsageError, match=r"2 jobs.*job, other"):
        ps.snapshots.read(str(job.root), uid="people")


def test_columns_rows_and_heads_are_pushed_down(job):
    frame = ps.snapshots.read(str(job.folder), uid="people", name="profile")
    wanted = {i: value for i, value in job.profiles.items() if value[0] < 0}
    found = frame.filter(pl.col("orders") < 0).select("note", "user_id").collect()
    assert found.columns == ["note", "user_id"]
    assert sorted(found["user_id"].to_list()) == sorted(wanted)
    assert frame.head(3).collect().height == 3
    assert frame.select(pl.len()).collect().item() == len(job.profiles)
    assert sorted(frame.select("orders").collect()["orders"]) == sorted(orders for orders, _ in job.profiles.values())
    assert frame.filter(pl.col("note").is_null()).select("user_id").collect().height == len(wanted) + 1


def test_hashes_on_request_are_sorted(job):
    frame = ps.snapshots.read(str(job.folder), uid="people", name="profile", with_hash=True).collect()
    assert frame["__key_hash"].is_sorted()


def test_state_that_is_not_keyed(job):
    found = ps.snapshots.read(str(job.folder), uid="orders").collect()
    assert found.rows() == [(0, 0, '{"at":0}'), (1, 0, '{"at":1}')]


def test_a_replaced_leaders_checkpoint_does_not_count(job):
    newest = job.checkpoint(generation=1)
    seal = msgspec.structs.replace(newest, kind="seal", sequence=newest.sequence + 1, generation=2, subtasks=())
    job.append(seal)
    job.append(msgspec.structs.replace(newest, sequence=newest.sequence + 2, generation=1, subtasks=()))
    assert profiles(ps.snapshots.read(str(job.folder), uid="people", name="profile")) == job.profiles


def test_nothing_of_an_older_history_counts(job):
    seal = msgspec.structs.replace(
        job.checkpoint(), kind="seal", sequence=job.sequence + 1, generation=2, subtasks=(), note="fresh"
    )
    job.append(seal)
    with pytest.raises(NotFoundError, match="no checkpoint"):
        ps.snapshots.read(str(job.folder), uid="people")


def test_errors_say_what_there_is(job, tmp_path):
    folder = str(job.folder)
    with pytest.raises(NotFoundError, match=r"no state of uid 'peopel'.*did you mean 'people'"):
        ps.snapshots.read(folder, uid="peopel")
    with pytest.raises(NotFoundError, match=r"no state 'profil'.*did you mean 'profile'"):
        ps.snapshots.read(folder, uid="people", name="profil")
    with pytest.raises(NotFoundError, match=r"no snapshot at .*/nowhere"):
        ps.snapshots.read(str(tmp_path / "nowhere"), uid="people")
    with pytest.raises(NotFoundError, match=r"no checkpoint 9.*there is: 1, 2"):
        ps.snapshots.read(folder, uid="people", checkpoint=9)
    savepoint = job.savepoint(job.checkpoint(), tmp_path / "sp")
    with pytest.raises(UsageError, match="is a savepoint"):
        ps.snapshots.read(savepoint, uid="people", checkpoint=1)


def test_a_manifest_that_cannot_be_read(job):
    (job.folder / "manifests" / f"{2:020d}.json").write_bytes(b'{"version": 1')
    with pytest.raises(SnapshotDamagedError, match=r"2\.json is damaged"):
        ps.snapshots.read(str(job.folder), uid="people")


def test_a_manifest_of_a_newer_format(job):
    job.checkpoint(version=99)
    with pytest.raises(SnapshotDamagedError, match="format version 99"):
        ps.snapshots.read(str(job.folder), uid="people")


def test_a_damaged_file_is_named_when_the_frame_is_collected(job):
    for path in (job.folder / "data" / "r").iterdir():
        path.write_bytes(path.read_bytes()[:-9])
    frame = ps.snapshots.read(str(job.folder), uid="people", name="profile")
    with pytest.raises(SnapshotDamagedError, match="shorter than its manifest says"):
        frame.collect()
