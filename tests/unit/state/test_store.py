"""The keyed state of an operator: restoring, rescaling, merging, closing."""

import gc
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.core.errors import GraphError, StateMismatchError, StorageError
from penstock.core.keygroup import hash_range_of
from penstock.kernels.keys.hashing import hash_columns
from penstock.kernels.keys.key_columns import fixed_column, key_columns
from penstock.state.cells.accumulators import AccumulatorInput, AccumulatorSpec, PaneTableSpec
from penstock.state.log import frozen as merging
from penstock.state.memory.budget import MemoryBudget
from penstock.state.memory.limits import PRODUCTION


def checkpoint(state, store, checkpoint_id):
    (frozen,) = store.freeze(checkpoint_id)
    snapshot = state.upload(frozen)
    store.completed(checkpoint_id)
    return snapshot


def test_a_state_is_declared_once(state):
    store = state.open()
    store.pane_table("panes", state.spec)
    with pytest.raises(GraphError, match="twice"):
        store.pane_table("panes", state.spec)


def test_other_columns_than_saved_are_refused(state):
    store = state.open()
    state.update(store.pane_table("panes", state.spec), [1], [0])
    snapshot = checkpoint(state, store, 1)
    other = PaneTableSpec(state.spec.key_schema, (AccumulatorSpec("largest", "int64", "max"),))
    with pytest.raises(StateMismatchError, match=r"total int64.*largest int64"):
        state.open([snapshot]).pane_table("panes", other)


@pytest.mark.usefixtures("deltas")
def test_segments_restored_stay_in_the_log(state):
    store = state.open()
    state.update(store.pane_table("panes", state.spec), [1, 2], [0, 0])
    first = checkpoint(state, store, 1)
    store = state.open([first])
    table = store.pane_table("panes", state.spec)
    state.update(table, [2], [0])
    second = checkpoint(state, store, 2)
    assert second.segments[0] == first.segments[0]
    assert second.segments[1].position > first.segments[0].position
    assert [s.writer for s in second.segments] == ["run/v/0/0", "run/v/0/1"]
    assert state.rows(state.open([second]).pane_table("panes", state.spec)) == {1: (1, 1), 2: (2, 2)}


@pytest.mark.usefixtures("deltas")
def test_a_pause_follows_each_piece_of_a_later_checkpoint(state):
    store = state.open()
    table = store.pane_table("panes", state.spec)
    snapshots, pauses = [], []
    for n in range(3):
        state.update(table, [1, n], [0, 0])
        snapshots.append(checkpoint(state, store, n + 1))
    prepared = state.open(snapshots[:1])
    prepared.pane_table("panes", state.spec)
    assert prepared.advance((snapshots[-1],), lambda: pauses.append(1))
    assert len(pauses) == len(snapshots[-1].segments) - len(snapshots[0].segments) == 2
    assert state.rows(prepared.pane_table("panes", state.spec)) == state.rows(table)


def open_files():
    return {path.name for path in Path("/proc/self/fd").iterdir()}


@pytest.fixture
def no_collection():
    """Garbage collection closes files that earlier tests have left, and their descriptors are used again."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection", "deltas")
def test_a_merge_that_fails_leaves_no_file_open(state, monkeypatch):
    store = state.open()
    table = store.pane_table("panes", state.spec)
    for n in range(PRODUCTION.segments_per_tier):
        state.update(table, [n], [0])
        checkpoint(state, store, n + 1)
    job = store.compaction()

    def broken(*_, **__):
        yield state.spec.segment_schema.empty_table()
        raise StorageError("the store is away")

    monkeypatch.setattr(merging, "merge_segments", broken)
    before = open_files()
    with pytest.raises(StorageError) as failure:  # which knows the frame that opened the file
        job.run(lambda file: state.files[file.path])
    assert open_files() <= before
    assert failure.value.__traceback__ is not None


@pytest.mark.usefixtures("deltas")
def test_a_full_tier_is_merged(state):
    store = state.open()
    table = store.pane_table("panes", state.spec)
    for n in range(1, PRODUCTION.segments_per_tier + 1):
        state.update(table, [0, n], [0, 0])
        assert store.compaction() is None
        last = checkpoint(state, store, n)
    job = store.compaction()
    assert len(job.inputs) == PRODUCTION.segments_per_tier
    assert store.compaction() is None, "one at a time"
    encoded = job.run(lambda file: state.files[file.path])
    assert (encoded.entry.rows, encoded.entry.tier) == (PRODUCTION.segments_per_tier + 1, 1)
    store.compacted(job, state.write(encoded))
    merged = checkpoint(state, store, 99)
    assert [s.tier for s in merged.segments] == [1]
    expected = state.rows(state.open([last]).pane_table("panes", state.spec))
    assert state.rows(state.open([merged]).pane_table("panes", state.spec)) == expected


@pytest.mark.usefixtures("deltas")
def test_a_compaction_given_up_changes_nothing(state):
    store = state.open()
    table = store.pane_table("panes", state.spec)
    for n in range(PRODUCTION.segments_per_tier):
        state.update(table, [n], [0])
        checkpoint(state, store, n)
    job = store.compaction()
    store.compacted(job, None)
    assert store.compaction().inputs == job.inputs


def test_rescaling_hands_each_subtask_its_hashes(state):
    store = state.open()
    keys = list(range(2000))
    state.update(store.pane_table("panes", state.spec), keys, [0] * 2000)
    snapshot = checkpoint(state, store, 1)
    owner = hash_columns(pa.record_batch({"k": pa.array(keys)}), ("k",))
    found = {}
    for subtask in range(3):
        owned = hash_range_of(subtask, 3, 128)
        rows = state.rows(state.open([snapshot], hash_range=owned).pane_table("panes", state.spec))
        assert all(int(owner[k]) in owned for k in rows)
        assert not found.keys() & rows.keys()
        found |= rows
    assert len(found) == 2000


def test_closing_frees_memory_and_folders_twice(state):
    store = state.open(backend="rocksdb")
    state.update(store.pane_table("panes", state.spec), [1], [0])
    assert list(state.directory.rglob("cold-panes"))
    store.close()
    store.close()
    assert store.memory_bytes == 0
    assert not list(state.directory.rglob("cold-panes"))


def test_a_budget_sums_its_holders():
    budget = MemoryBudget(10)
    budget.report("a", 6)
    budget.report("b", 4)
    assert not budget.exceeded
    budget.report("a", 7)
    assert budget.exceeded
    asked = [budget.should_shrink(*held) for held in (("a", 7), ("a", 6), ("b", 4), ("c", 0))]
    assert asked == [True, False, False, False], "who holds less than its share need not"
    budget.report("b", 0)
    assert (budget.used_bytes, budget.exceeded) == (7, False)


def single_pane(state):
    return PaneTableSpec(state.spec.key_schema, state.spec.accumulators, single_pane=True)


def run(table, keys):
    """Add each key to its own sum."""
    batch = pa.record_batch({"k": pa.array(keys, pa.int64())})
    column = fixed_column(pa.array(keys, pa.int64()))
    given = AccumulatorInput(column.values, column.bitmap, column.bit_offset)
    table.run(key_columns(batch, ("k",)), hash_columns(batch, ("k",)), [given])


def test_changes_that_leave_memory_are_one_segment_a_barrier(state):
    spec = single_pane(state)
    store = state.open(backend="rocksdb", memory=300_000)
    table = store.running_table("running", spec)
    for first in (0, 2000, 4000, 0, 4000, 0, 6000):
        run(table, range(first, first + 2000))
    run(table, [5, 8000])
    (frozen,) = store.freeze(1)
    run(table, range(6000))  # none of it belongs before the barrier
    snapshot = state.upload(frozen)
    store.completed(1)
    apart, inside = snapshot.segments
    assert inside.position > apart.position
    assert inside.rows < apart.rows <= 8000
    again = state.open([snapshot], backend="rocksdb", memory=300_000).running_table("running", spec)
    times = {k: 3 if k < 2000 else 1 if k < 4000 else 2 if k < 6000 else 1 for k in range(8001)} | {5: 4}
    assert state.rows(again) == {k: (n, n * k) for k, n in times.items()}
    assert not list(state.directory.rglob("*.parquet")), "nothing was encoded on the way"
    later = checkpoint(state, store, 2)
    last = state.open([later]).running_table("running", spec)
    assert state.rows(last) == {k: (n + (k < 6000), (n + (k < 6000)) * k) for k, n in times.items()}


@pytest.mark.usefixtures("deltas")
def test_restored_rows_that_exceed_the_memory_go_to_the_file_and_later_changes_to_memory(state):
    spec = single_pane(state)
    store = state.open()
    table = store.running_table("running", spec)
    run(table, range(20_000))
    checkpoint(state, store, 1)
    run(table, range(0, 20_000, 1000))
    snapshot = checkpoint(state, store, 2)
    assert [s.rows for s in snapshot.segments] == [20_000, 20]
    again = state.open([snapshot], backend="rocksdb", memory=300_000).running_table("running", spec)
    assert again._hot.index.count == 20
    assert again.cold.rows_of(0) == 20_000
    times = {k: 1 + (k % 1000 == 0) for k in range(20_000)}
    assert state.rows(again) == {k: (n, n * k) for k, n in times.items()}
    small = state.open([snapshot], backend="rocksdb").running_table("running", spec)
    assert (small._hot.index.count, small.cold.panes) == (20_000, [])


@pytest.mark.usefixtures("deltas")
def test_a_table_most_of_which_has_changed_is_saved_whole(state):
    spec = single_pane(state)
    store = state.open()
    table = store.running_table("running", spec)
    run(table, range(100))
    assert [s.rows for s in checkpoint(state, store, 1).segments] == [100]
    run(table, range(10))
    run(table, range(10))
    snapshot = checkpoint(state, store, 2)
    assert ([s.rows for s in snapshot.segments], snapshot.tombstones) == ([100, 10], ())
    run(table, range(50))
    (frozen,) = store.freeze(3)
    run(table, range(90))  # while nothing of it was copied
    snapshot = state.upload(frozen)
    assert ([s.rows for s in snapshot.segments], snapshot.tombstones) == ([100], ())
    expected = {k: (4, 4 * k) if k < 10 else (2, 2 * k) if k < 50 else (1, k) for k in range(100)}
    assert state.rows(state.open([snapshot]).running_table("running", spec)) == expected
    run(table, range(5000))
    store.freeze(4)
    run(table, range(4096))  # the second page still waits to be copied: the next freeze can only add to this one
    (frozen,) = store.freeze(5)
    assert [s.rows for s in state.upload(frozen).segments] == [5000, 4096]
