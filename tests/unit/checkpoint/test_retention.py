"""Nothing that is still named is deleted; what nobody names goes."""

from __future__ import annotations

from penstock.checkpoint.retention import Sweeper, files_of, plan_retention
from penstock.core.snapshot import Committable, FileRef, KeyedStateSnapshot, Segment, SubtaskSnapshot


def part(*paths):
    segments = tuple(
        Segment(
            file=FileRef(path=p), position=i, writer="w", rows=1, hash_min=0, hash_max=1, namespace_min=0,
            namespace_max=0,
        )
        for i, p in enumerate(paths)
    )  # fmt: skip
    keyed = KeyedStateSnapshot(uid="u", state="s", schema="", hash_low=0, hash_high=1, segments=segments)
    return SubtaskSnapshot(vertex_id="v", subtask=0, keyed=(keyed,))


def output(path):
    return Committable(id=path, uid="o", run_id="r", subtask=0, checkpoint_id=1, files=(FileRef(path=path),))


def test_shared_files_live_as_long_as_one_manifest_names_them(manifest_of):
    history = [
        manifest_of(sequence=1, subtasks=(part("base", "d1"),)),
        manifest_of(sequence=2, subtasks=(part("base", "d1", "d2"),)),
        manifest_of(sequence=3, subtasks=(part("base2", "d2"),)),
    ]
    plan = plan_retention(history, 2)
    assert plan.sequences == (1,)
    assert plan.files == ()
    plan = plan_retention(history, 1)
    assert plan.sequences == (1, 2)
    assert plan.files == ("base", "d1")
    assert [m.sequence for m in plan.kept] == [3]


def test_pinned_entries_and_files_in_use_stay(manifest_of):
    history = [
        manifest_of("savepoint", sequence=1, subtasks=(part("sp"),)),
        manifest_of(sequence=2, pending=(output("pending/1"), output("pending/2"))),
        manifest_of(sequence=3),
    ]
    plan = plan_retention(history, 1, pinned=(1,), in_use=("pending/2",))
    assert plan.sequences == (2,)
    assert plan.files == ("pending/1",)


def test_seals_and_the_entry_before_one_stay_for_their_place_not_for_their_files(manifest_of):
    history = [
        manifest_of("seal", sequence=1),
        manifest_of(sequence=2, subtasks=(part("a"),)),
        manifest_of(sequence=3, subtasks=(part("b"),)),
        manifest_of("seal", sequence=4, generation=2),
        manifest_of(sequence=5, subtasks=(part("c"),)),
    ]
    plan = plan_retention(history, 1)
    assert plan.sequences == (2,)
    assert plan.files == ("a", "b")
    assert plan_retention(plan.kept, 1).files == ()
    (fence,) = plan.emptied
    assert (fence.kind, fence.sequence, fence.nonce, files_of(fence)) == ("fence", 3, history[2].nonce, set())
    assert plan_retention(plan.kept, 1).emptied == ()


def test_a_seal_and_an_end_that_name_output_stay_what_they_are_without_it(manifest_of):
    history = [
        manifest_of("end", sequence=1, pending=(output("pending/1"),)),
        manifest_of("seal", sequence=2, generation=2, pending=(output("pending/1"),)),
        manifest_of(sequence=3),
    ]
    plan = plan_retention(history, 1)
    assert [(m.kind, m.sequence, m.pending) for m in plan.emptied] == [("end", 1, ()), ("seal", 2, ())]
    assert plan.files == ("pending/1",)


def test_fewer_checkpoints_than_are_retained(manifest_of):
    history = [manifest_of("seal", sequence=1), manifest_of("savepoint", sequence=2), manifest_of(sequence=3)]
    assert plan_retention(history, 2).sequences == ()


def test_files_of_others_and_inline_ones_are_never_ours_to_delete(manifest_of):
    assert files_of(manifest_of(subtasks=(part("s3://x/y", "", "data/z"),))) == {"data/z"}


def test_the_sweeper_takes_what_was_unnamed_before_anybody_was_live(manifest_of):
    sweeper = Sweeper(grace_ms=100)
    named = manifest_of(sequence=1, subtasks=(part("data/kept"),))
    sweeper.listed(["data/kept", "data/lost", "pending/lost", "manifests/x", "savepoints/y"], [named], now_ms=0)
    assert sweeper.appended([named], 50) == ()
    later = manifest_of(sequence=2, subtasks=(part("data/kept", "data/new"),))
    assert sweeper.appended([named, later], 100) == ("data/lost", "pending/lost")
    assert sweeper.appended([named, later], 200) == ()


def test_the_sweeper_spares_what_came_to_be_named_after_all(manifest_of):
    sweeper = Sweeper(grace_ms=0)
    sweeper.listed(["data/a"], [], now_ms=0)
    assert sweeper.appended([manifest_of(subtasks=(part("data/a"),))], 1) == ()
