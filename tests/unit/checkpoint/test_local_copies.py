"""Local copies of checkpoint files: what is kept, what is read from them, and what never is."""

from dataclasses import replace

import pytest

from penstock.checkpoint.local_copies import ENDED, CopyPlace, LocalCopies, StateFiles
from penstock.checkpoint.local_store import LocalStore
from penstock.checkpoint.memory_store import MemoryStore
from penstock.checkpoint.stores import checksum_of, local_folder
from penstock.core.errors import SnapshotDamagedError
from penstock.core.snapshot import FileRef, InFlightRows, KeyedStateSnapshot, Segment, SubtaskSnapshot

FIRST, SECOND = bytes(range(200)), bytes(range(50, 250))


@pytest.fixture
def place(tmp_path):
    return CopyPlace(folder=tmp_path / "job", worker_id="w1", most_bytes=10_000, free=lambda _folder: 1 << 30)


@pytest.fixture
def store():
    return MemoryStore()


def written(store, copies, key="data/run/w1-1.pack", blocks=(FIRST, SECOND)):
    """An object of two parts, as the uploader writes it."""
    data, refs = b"".join(blocks), []
    for block in blocks:
        offset = sum(ref.length for ref in refs)
        refs.append(FileRef(path=key, offset=offset, length=len(block), checksum=checksum_of(block)))
    store.put(key, data)
    copies.keep(key, data)
    return refs


def snapshot(*refs, in_flight=(), subtask=0):
    segments = tuple(
        Segment(file=ref, position=n, writer="w", rows=1, hash_min=0, hash_max=0, namespace_min=0, namespace_max=0)
        for n, ref in enumerate(refs)
    )
    keyed = KeyedStateSnapshot(uid="u", state="s", schema="", hash_low=0, hash_high=0, segments=segments)
    rows = tuple(InFlightRows(edge="e", receiver=0, file=ref) for ref in in_flight)
    return SubtaskSnapshot(vertex_id="v", subtask=subtask, keyed=(keyed,), in_flight=rows)


def successor(place, store, refs, worker_id="w2"):
    """The files as the next worker of the slot reads them, after the TaskManager has seen the end of the first."""
    ended = place.folder / ENDED
    ended.mkdir(parents=True, exist_ok=True)
    if (place.folder / place.worker_id).exists():
        (place.folder / place.worker_id).rename(ended / place.worker_id)
    copies = LocalCopies(replace(place, worker_id=worker_id))
    copies.adopt(refs)
    return copies, StateFiles(store, copies)


def files_of(place, worker_id="w1"):
    return sorted(path.name for path in (place.folder / worker_id).rglob("*") if path.is_file())


def test_the_next_worker_reads_nothing_from_the_store(place, store):
    refs = written(store, LocalCopies(place))
    copies, files = successor(place, store, refs)
    store.delete(refs[0].path)
    assert [files.read(ref) for ref in refs] == [FIRST, SECOND]
    # a range without a checksum, which its reader compares
    assert files.read(FileRef(path=refs[1].path, offset=210, length=20)) == SECOND[10:30]
    assert (files.local_bytes, files.remote_bytes, copies.held_bytes) == (420, 0, 400)


def test_a_worker_elsewhere_reads_everything_from_the_store(place, store, tmp_path):
    refs = written(store, LocalCopies(place))
    _, files = successor(replace(place, folder=tmp_path / "elsewhere"), store, refs)
    assert [files.read(ref) for ref in refs] == [FIRST, SECOND]
    assert (files.local_bytes, files.remote_bytes) == (0, 400)


def flipped(path):
    data = bytearray(path.read_bytes())
    data[10] ^= 1
    path.write_bytes(data)


def shortened(path):
    path.write_bytes(path.read_bytes()[:-1])


def of_another_checkpoint(path):
    path.write_bytes(bytes(reversed(path.read_bytes())))


def removed(path):
    path.unlink()


def a_folder(path):
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [flipped, shortened, of_another_checkpoint, removed, a_folder])
def test_a_damaged_copy_is_never_used(place, store, damage):
    refs = written(store, LocalCopies(place), blocks=(FIRST,))
    damage(place.folder / "w1" / refs[0].path)
    _, files = successor(place, store, refs)
    assert files.read(refs[0]) == FIRST
    assert (files.local_bytes, files.remote_bytes) == (0, 200)
    assert damage is a_folder or files_of(place, "w2") == [], "it is dropped"


def test_a_range_that_a_copy_does_not_have_is_read_from_the_store(place, store):
    refs = written(store, LocalCopies(place), blocks=(FIRST,))
    shortened(place.folder / "w1" / refs[0].path)
    _, files = successor(place, store, refs)
    assert files.read(FileRef(path=refs[0].path, offset=190, length=10)) == FIRST[190:]
    assert (files.local_bytes, files.remote_bytes) == (0, 10)


def test_a_damaged_store_is_still_reported(place, store):
    refs = written(store, LocalCopies(place))
    flipped(place.folder / "w1" / refs[0].path)
    _, files = successor(place, store, refs)
    store.put(refs[0].path, b"x" * 400)
    with pytest.raises(SnapshotDamagedError, match="is damaged: checksum"):
        files.read(refs[0])


def complete_at(copies, checkpoint_id):
    delete = copies.completed(checkpoint_id)
    if delete is not None:
        delete()


def test_a_checkpoint_that_drops_no_copy_leaves_nothing_to_delete(place, store):
    copies = LocalCopies(place)
    (kept,) = written(store, copies, "data/run/w1-1.pack", (FIRST,))
    copies.acknowledged(1, snapshot(kept))
    assert copies.completed(1) is None
    copies.acknowledged(2, snapshot())
    assert copies.completed(2) is not None
    assert LocalCopies(None).completed(1) is None


def test_only_the_newest_complete_checkpoint_and_later_ones_are_kept(place, store):
    copies = LocalCopies(place)
    keys = [f"data/run/w1-{n}.pack" for n in range(1, 5)]
    refs = [written(store, copies, key, (FIRST,))[0] for key in keys]
    copies.acknowledged(1, snapshot(refs[0], refs[1]))
    copies.acknowledged(2, snapshot(refs[1], in_flight=refs[2:3]))
    copies.acknowledged(3, snapshot(refs[3]))
    complete_at(copies, 1)
    assert len(files_of(place)) == 4
    complete_at(copies, 2)
    assert files_of(place) == ["w1-2.pack", "w1-3.pack", "w1-4.pack"]
    complete_at(copies, 3)
    assert (files_of(place), copies.held_bytes) == (["w1-4.pack"], 200)


def test_a_subtask_that_has_ended_keeps_its_last_snapshot(place, store):
    copies = LocalCopies(place)
    (ended,) = written(store, copies, "data/run/w1-1.pack", (FIRST,))
    copies.acknowledged(1, snapshot(ended, subtask=1))
    for number in (1, 2, 3):
        copies.acknowledged(number, snapshot())
        complete_at(copies, number)
    assert files_of(place) == ["w1-1.pack"]


def test_checkpoints_that_never_complete_take_no_memory_and_cost_the_complete_one_no_copy(place, store):
    copies = LocalCopies(place)
    (complete,) = written(store, copies, "data/run/w1-1.pack", (FIRST,))
    (newest,) = written(store, copies, "data/run/w1-2.pack", (SECOND,))
    copies.acknowledged(1, snapshot(complete))
    complete_at(copies, 1)
    for number in range(2, 1_000):
        copies.acknowledged(number, snapshot(newest))
    assert sum(map(len, copies._snapshots.values())) < 100
    complete_at(copies, 1)
    complete_at(copies, 1)
    assert files_of(place) == ["w1-1.pack", "w1-2.pack"]


def test_an_object_that_no_snapshot_names_is_dropped_after_two_checkpoints(place, store):
    """A compaction's result enters a later snapshot; if the compaction fails, none."""
    copies = LocalCopies(place)
    written(store, copies)
    complete_at(copies, 1)
    assert files_of(place) == ["w1-1.pack"]
    complete_at(copies, 2)
    assert (files_of(place), copies.held_bytes) == ([], 0)


def test_what_ended_workers_left_is_removed_at_the_first_complete_checkpoint(place, store):
    refs = written(store, LocalCopies(place))
    copies, files = successor(place, store, refs)
    (new,) = written(store, copies, "data/run/w2-1.pack", (SECOND,))
    copies.acknowledged(7, snapshot(refs[0], new))
    assert (place.folder / ENDED / "w1").exists()
    complete_at(copies, 7)
    assert list((place.folder / ENDED).iterdir()) == []
    assert (files.read(refs[0]), files.remote_bytes) == (FIRST, 0)
    copies.acknowledged(8, snapshot(new))
    complete_at(copies, 8)
    assert files_of(place, "w2") == ["w2-1.pack"]


def test_copies_survive_a_worker_that_completed_no_checkpoint(place, store):
    refs = written(store, LocalCopies(place))
    successor(place, store, refs)
    _, files = successor(replace(place, worker_id="w2"), store, refs, worker_id="w3")
    assert (files.read(refs[1]), files.remote_bytes) == (SECOND, 0)


def test_the_size_is_bounded(place, store):
    copies = LocalCopies(replace(place, most_bytes=500))
    first = written(store, copies, "data/run/w1-1.pack")
    second = written(store, copies, "data/run/w1-2.pack")
    assert (files_of(place), copies.held_bytes) == (["w1-1.pack"], 400)
    assert copies.read(second[0]) is None
    copies.acknowledged(1, snapshot(*second))
    complete_at(copies, 1)
    complete_at(copies, 2)
    written(store, copies, "data/run/w1-3.pack")
    assert (files_of(place), copies.read(first[0])) == (["w1-3.pack"], None)


def test_no_copy_fills_the_disk(place, store):
    copies = LocalCopies(replace(place, free=lambda _folder: 399))
    written(store, copies)
    assert (files_of(place), copies.held_bytes) == ([], 0)


def test_an_error_of_the_disk_drops_the_copy_alone(place, store, tmp_path):
    (tmp_path / "job").write_text("a file where the folder would be")
    copies = LocalCopies(place)
    refs = written(store, copies)
    assert (copies.read(refs[0]), copies.held_bytes) == (None, 0)
    copies.adopt(refs)
    copies.acknowledged(1, snapshot(*refs))
    complete_at(copies, 1)


def test_files_of_a_local_store_are_linked(place, tmp_path):
    store = LocalStore(str(tmp_path / "store"))
    copies = LocalCopies(replace(place, store_folder=local_folder(store), free=lambda _folder: 0))
    refs = written(store, copies)
    assert (place.folder / "w1" / refs[0].path).stat().st_nlink == 2
    store.delete(refs[0].path)
    assert copies.read(refs[0]) == FIRST


def test_a_store_on_another_disk_is_copied(place, tmp_path):
    store = LocalStore(str(tmp_path / "store"))
    copies = LocalCopies(replace(place, store_folder=tmp_path / "not-there"))
    refs = written(store, copies)
    assert (place.folder / "w1" / refs[0].path).stat().st_nlink == 1
    assert copies.read(refs[0]) == FIRST


def test_files_of_a_savepoint_and_of_a_manifest_are_not_looked_for(place, store):
    inline = FileRef(inline=FIRST, length=200, checksum=checksum_of(FIRST))
    (place.folder / ENDED / "w0").mkdir(parents=True)
    (place.folder / ENDED / "x").write_bytes(FIRST)
    elsewhere = [FileRef(path=path, length=3) for path in ("s3://b/x", "../x", str(place.folder / ENDED / "x"), "a//x")]
    copies, files = successor(place, store, [inline, *elsewhere])
    assert files.read(inline) == FIRST
    assert [copies.read(ref) for ref in elsewhere] == [None] * 4
    assert files_of(place, "w2") == []
    assert (files.local_bytes, files.remote_bytes) == (0, 0)


def test_without_a_place_nothing_is_kept(store):
    copies = LocalCopies(None)
    refs = written(store, copies)
    copies.adopt(refs)
    copies.acknowledged(1, snapshot(*refs))
    complete_at(copies, 1)
    assert (copies.read(refs[0]), copies.held_bytes) == (None, 0)
