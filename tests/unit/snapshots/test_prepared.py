"""A savepoint of files that were rewritten before the job stopped: the rows of the last checkpoint, none older."""

import functools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.depth import examples
from tests.unit.snapshots.conftest import Job

import penstock as ps
from penstock.core.errors import NotFoundError, SnapshotDamagedError, UsageError
from penstock.snapshots.access.opening import open_snapshot
from penstock.snapshots.access.reading import diff
from penstock.snapshots.access.verify import verify
from penstock.snapshots.rewrite.prepared import Preparation, RewritePlan, key_change
from penstock.snapshots.rewrite.split_points import SnapshotLimits

#: Files of a few rows are large, and the larger ones are split.
LIMITS = SnapshotLimits(large_file_bytes=3000, run_file_bytes=4000)
plan_of = functools.partial(RewritePlan.of, limits=LIMITS)
TEXT = ["user=CAST(user_id AS VARCHAR)"]


def prepare(snapshot, folder, change=None):
    return Preparation.of(snapshot, folder, change=change, limits=LIMITS).write()


def opened(job):
    return open_snapshot(str(job.folder))


def require_same(job, uri):
    """The savepoint has the rows of the newest checkpoint, and no defect."""
    assert {row.verdict for row in diff(opened(job), open_snapshot(uri))} == {"same"}
    assert verify(uri).damaged == []
    profiles = ps.snapshots.read(uri, uid="people", name="profile").collect()
    assert {row[0]: row[2:] for row in profiles.rows()} == job.profiles
    panes = ps.snapshots.read(uri, uid="totals", name="panes").collect()
    assert {row[:2]: row[2:] for row in panes.rows()} == job.panes


def test_what_has_not_changed_is_named_and_the_rest_is_written(job, tmp_path):
    done = prepare(opened(job), str(tmp_path / "prepared"))
    assert done.written > 2
    assert (done.reused, done.gone) == (0, 0)
    again = prepare(opened(job), str(tmp_path / "prepared"))
    assert (again.written, again.reused) == (0, done.written)
    job.set({i: (i, "later") for i in range(100, 120)})
    job.clear([3, 110])
    job.checkpoint()
    plan = plan_of(opened(job), str(tmp_path / "prepared"), key_groups=96)
    assert 0 < plan.missing_bytes < sum(run.size_bytes for _, runs in plan.states for run in runs)
    uri = plan.write(str(tmp_path / "sp"))
    assert open_snapshot(uri).manifest.key_groups == 96
    require_same(job, uri)
    paths = [s.file.path for part in open_snapshot(uri).manifest.subtasks for k in part.keyed for s in k.segments]
    assert any(path.startswith(f"file://{tmp_path}/prepared/people/") for path in paths)
    assert any("://" not in path for path in paths)


def test_rows_that_are_hidden_later_do_not_come_back(empty_job, tmp_path):
    job = empty_job
    job.add(list(range(60)), 20)
    job.add(list(range(300)), 30)
    job.set({i: (i, f"n{i}") for i in range(250)})
    job.checkpoint()
    prepare(opened(job), str(tmp_path / "prepared"))
    job.clear(list(range(100)))
    job.close_below(30)
    job.checkpoint()
    require_same(job, plan_of(opened(job), str(tmp_path / "prepared")).write(str(tmp_path / "sp")))


@examples(60)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["add", "set", "clear", "close", "prepare"]), st.integers(0, 200), st.integers(1, 120)
        ),
        min_size=2,
        max_size=8,
    )
)
def test_any_history_gives_the_rows_of_its_last_checkpoint(tmp_path_factory, steps):
    folder = tmp_path_factory.mktemp("any")
    job, pane = Job(folder), 0
    try:
        job.add(list(range(300)), 0)
        job.set({i: (i, f"n{i}") for i in range(300)})
        job.checkpoint()
        prepare(opened(job), str(folder / "prepared"))
        for kind, first, count in steps:
            ids = list(range(first, first + count))
            if kind == "add":
                job.add(ids, pane + 10)
            elif kind == "set":
                job.set(dict.fromkeys(ids, (first, None)))
            elif kind == "clear":
                job.clear(ids)
            elif kind == "close":
                pane += 10
                job.close_below(pane)
            job.checkpoint()
            if kind == "prepare":
                prepare(opened(job), str(folder / "prepared"))
        require_same(job, plan_of(opened(job), str(folder / "prepared"), key_groups=64).write(str(folder / "sp")))
    finally:
        job.close()


def test_a_new_key_with_rows_changed_and_removed_after_the_preparation(job, tmp_path):
    folder = str(tmp_path / "prepared")
    prepare(opened(job), folder, change=key_change(opened(job), "people", TEXT))
    job.set({i: (i, "later") for i in range(100, 120)})
    job.clear([3, 110])
    job.checkpoint()
    snapshot = opened(job)
    plan = plan_of(snapshot, folder, change=key_change(snapshot, "people", TEXT))
    total = sum(run.size_bytes for _, runs in plan.states for run in runs)
    assert 0 < plan.missing_bytes < total
    uri = plan.write(str(tmp_path / "sp"))
    profiles = ps.snapshots.read(uri, uid="people", name="profile").collect()
    assert {int(user): value for user, _, *value in profiles.rows()} == {i: [*v] for i, v in job.profiles.items()}
    assert verify(uri).damaged == []
    panes = ps.snapshots.read(uri, uid="totals", name="panes").collect()
    assert {row[:2]: row[2:] for row in panes.rows()} == job.panes
    other = plan_of(snapshot, folder, change=key_change(snapshot, "people", ["user=user_id"]))
    assert other.missing_bytes > plan.missing_bytes, "files under another key do not count"


def test_a_key_that_might_join_two_is_refused(job, tmp_path):
    snapshot = opened(job)
    with pytest.raises(UsageError, match="two old keys might get one new key"):
        key_change(snapshot, "people", ["user=user_id % 10"])
    with pytest.raises(NotFoundError, match="did you mean 'people'"):
        key_change(snapshot, "peple", TEXT)
    with pytest.raises(UsageError, match="nothing was prepared in"):
        plan_of(snapshot, str(tmp_path / "none"))
    prepare(snapshot, str(tmp_path / "prepared"))
    with pytest.raises(UsageError, match="1 key groups are fewer than the 2 subtasks"):
        plan_of(snapshot, str(tmp_path / "prepared"), key_groups=1)
    with pytest.raises(UsageError, match="the snapshot's own folder"):
        prepare(snapshot, str(job.folder))


def without_one_file(job, manifest):
    """Remove a large file of a checkpoint; return the checkpoint without the state that has it."""
    part = next(k for k in manifest.subtasks[0].keyed if k.uid == "people" and k.state == "profile")
    victim = max(part.segments, key=lambda s: s.file.length).file.path
    (job.folder / victim).unlink()
    kept = tuple(k for k in manifest.subtasks[0].keyed if k is not part)
    first = msgspec.structs.replace(manifest.subtasks[0], keyed=kept)
    return (first, *manifest.subtasks[1:])


def test_a_file_that_the_job_has_compacted_meanwhile_is_left_out(job, tmp_path):
    old = opened(job)
    job.checkpoint(subtasks=without_one_file(job, old.manifest))
    done = prepare(old, str(tmp_path / "prepared"))
    assert done.gone >= 1
    assert done.written >= 1


def test_a_missing_file_of_the_newest_checkpoint_is_told(job, tmp_path):
    without_one_file(job, opened(job).manifest)
    with pytest.raises(SnapshotDamagedError, match=r"\.pack is missing \(it is named by the newest checkpoint"):
        prepare(opened(job), str(tmp_path / "prepared"))


def test_a_damaged_entry_is_told(job, tmp_path):
    prepare(opened(job), str(tmp_path / "prepared"))
    plan = plan_of(opened(job), str(tmp_path / "prepared"))
    for entry in (tmp_path / "prepared" / "runs").iterdir():
        entry.write_text("{")
    with pytest.raises(SnapshotDamagedError, match=r"runs/\w+\.json is damaged"):
        plan.write(str(tmp_path / "sp"))
