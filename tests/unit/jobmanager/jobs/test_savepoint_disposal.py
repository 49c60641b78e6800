"""What a disposal removes, what it leaves, and what it refuses."""

import asyncio

import msgspec
import pytest

from penstock.checkpoint.local_store import LocalStore
from penstock.checkpoint.manifest_log import Manifest, encode_manifest, key_of
from penstock.checkpoint.stores import open_store
from penstock.core.errors import NotFoundError, SavepointInUseError, UsageError
from penstock.core.rand import SeededRand
from penstock.core.snapshot import Committable, FileRef, KeyedStateSnapshot, Segment, SubtaskSnapshot
from penstock.jobmanager.jobs import savepoint_folders
from penstock.jobmanager.jobs.savepoint_folders import Disposals, dispose


def part(*paths):
    """A subtask whose one state lies in these files."""
    segments = tuple(
        Segment(
            file=FileRef(path=path), position=i, writer="w", rows=1, hash_min=0, hash_max=0, namespace_min=0,
            namespace_max=0,
        )
        for i, path in enumerate(paths)
    )  # fmt: skip
    state = KeyedStateSnapshot(uid="u", state="s", schema="", hash_low=0, hash_high=1, segments=segments)
    return SubtaskSnapshot(vertex_id="v", subtask=0, keyed=(state,))


def manifest(kind="savepoint", **fields):
    values = {
        "sequence": 1, "job_id": "j", "job_name": "job", "run_id": "r1", "generation": 1, "nonce": "", "created_ms": 0,
    }  # fmt: skip
    return Manifest(kind=kind, **(values | fields))


@pytest.fixture
def savepoint(tmp_path):
    place = tmp_path / "savepoint"
    store = open_store(str(place))
    owed = Committable(
        id="c", uid="out", run_id="r1", subtask=0, checkpoint_id=1, files=(FileRef(path="pending/c.arrow"),)
    )
    held = manifest(subtasks=(part("u/s/part-0.parquet", "../outside.parquet"),), pending=(owed,))
    for key in ("u/s/part-0.parquet", "pending/c.arrow", "notes.txt"):
        store.put(key, b"x")
    store.put("manifest.json", encode_manifest(held))
    (tmp_path / "outside.parquet").write_bytes(b"mine")
    return place


@pytest.fixture
def job(tmp_path):
    """Append entries to the log of a job's folder."""
    store = open_store(str(tmp_path / "job"))

    def append(*entries):
        for sequence, entry in enumerate(entries, 1):
            store.put(key_of(sequence), encode_manifest(msgspec.structs.replace(entry, sequence=sequence)))
        return str(tmp_path / "job")

    return append


def left(place):
    return sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file())


@pytest.mark.parametrize("spelled", ["{}", "{}/", "{}/manifest.json", "file://{}"])
def test_it_removes_what_the_savepoint_names_and_nothing_else(savepoint, spelled, tmp_path):
    dispose(spelled.format(savepoint), ())
    assert left(savepoint) == ["notes.txt"]
    assert (tmp_path / "outside.parquet").exists()
    with pytest.raises(NotFoundError, match="there is no savepoint"):
        dispose(str(savepoint), ())


@pytest.mark.parametrize("content", [b"{}", b"no", encode_manifest(manifest("checkpoint"))])
def test_what_is_no_savepoint_is_left_alone(savepoint, content):
    (savepoint / "manifest.json").write_bytes(content)
    with pytest.raises(UsageError, match="savepoint"):
        dispose(str(savepoint), ())
    assert "u/s/part-0.parquet" in left(savepoint)


def test_a_checkpoint_that_names_its_files_holds_it(savepoint, job):
    seal = manifest("seal", note=f"from {savepoint}")
    inherited = manifest("checkpoint", subtasks=(part(f"file://{savepoint}/u/s/part-0.parquet"),))
    own = manifest("checkpoint", subtasks=(part("data/1.parquet"),))
    with pytest.raises(SavepointInUseError, match="still uses files of savepoint"):
        dispose(str(savepoint), [job(seal, inherited)])
    dispose(str(savepoint), [job(seal, own)])
    assert left(savepoint) == ["notes.txt"]


def test_a_checkpoint_that_takes_the_place_of_another_meanwhile_is_not_missed(savepoint, job, monkeypatch):
    """Of a job that keeps one: listed is the old one, and when that is to be read, there is the new one alone."""
    inherited = manifest("checkpoint", subtasks=(part(f"file://{savepoint}/u/s/part-0.parquet"),))
    folder = job(manifest("seal", note=f"from {savepoint}"), manifest("end", note="CANCELED"), inherited)
    store, read = open_store(folder), LocalStore.read

    def late(self, key, *piece):
        if key == key_of(3):
            store.put(key_of(4), encode_manifest(msgspec.structs.replace(inherited, sequence=4)))
            store.delete(key_of(3))
        return read(self, key, *piece)

    monkeypatch.setattr(LocalStore, "read", late)
    with pytest.raises(SavepointInUseError, match="still uses files of savepoint"):
        dispose(str(savepoint), [folder])


def test_a_run_that_begins_there_holds_it_until_its_first_checkpoint_or_its_end(savepoint, job, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(savepoint)
    seal = manifest("seal", note=f"from {link}/manifest.json")
    with pytest.raises(SavepointInUseError, match="still uses files of savepoint"):
        dispose(str(savepoint), [job(seal)])
    dispose(str(savepoint), [job(seal, manifest("end", note="FAILED"))])


def test_whoever_claimed_it_is_asked_without_being_known(savepoint, job):
    folder = job(manifest("seal", note=f"from {savepoint}"))
    (savepoint / "claimed.json").write_bytes(msgspec.json.encode({"job_folder": folder, "job_id": "j", "run_id": "r"}))
    with pytest.raises(UsageError, match=folder):
        dispose(str(savepoint), ())
    job(manifest("seal", note="fresh"))
    dispose(str(savepoint), ())
    assert left(savepoint) == ["notes.txt"]


async def test_requests_are_answered_by_their_ids(savepoint):
    disposals = Disposals(tuple, SeededRand(1))
    first, second = disposals.begin(str(savepoint)), disposals.begin(f"{savepoint}-none")
    assert disposals.status(first).status == "IN_PROGRESS"
    await asyncio.gather(*disposals._running)
    assert disposals.status(first).status == "COMPLETED"
    assert "there is no savepoint" in disposals.status(second).error
    assert disposals.status(second).error_class == "NotFoundError"
    with pytest.raises(NotFoundError):
        disposals.status("other")


async def test_a_request_ends_whatever_is_found(savepoint, monkeypatch):
    (savepoint / "claimed.json").write_bytes(b"no JSON")
    disposals = Disposals(tuple, SeededRand(1))
    damaged = disposals.begin(str(savepoint))
    await asyncio.gather(*disposals._running)
    assert "claimed.json is damaged" in disposals.status(damaged).error
    assert "u/s/part-0.parquet" in left(savepoint)
    monkeypatch.setattr(savepoint_folders, "open_store", lambda _uri: 1 // 0)
    surprised = disposals.begin(str(savepoint))
    await asyncio.gather(*disposals._running)
    assert "ZeroDivisionError" in disposals.status(surprised).error
