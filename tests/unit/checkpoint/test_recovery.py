"""What is restored, fenced and published, from what the log says."""

from __future__ import annotations

import pytest

from penstock.checkpoint.manifest_log import ManifestLog
from penstock.checkpoint.recovery import FRESH, absolute_paths, check_source, live_entries, plan_recovery
from penstock.core.errors import StateMismatchError
from penstock.core.rand import SeededRand
from penstock.core.snapshot import Committable, FileRef, KeyedStateSnapshot, Segment, SubtaskSnapshot


def owed(number, run="r1"):
    return Committable(id=f"out/{run}/0/{number}", uid="out", run_id=run, subtask=0, checkpoint_id=number)


@pytest.fixture
def written(memory, clock, manifest_of):
    """Return a function that writes entries (kind, fields), each generation by a log of its own, and reads all."""

    def write(*entries):
        log, current = None, 0
        for kind, fields in entries:
            generation = fields.get("generation", max(current, 1))
            if log is None or generation != current:
                log, current = ManifestLog(memory, generation, clock, SeededRand(generation)), generation
            if kind == "seal":
                log.seal(manifest_of("seal", **fields))
            else:
                log.append(manifest_of(kind, **fields))
        return log.read()

    return write


def test_an_empty_start(written):
    plan = plan_recovery(written(("seal", {})), "r1")
    assert plan.restored is None
    assert plan.pending == ()
    assert plan.next_checkpoint_id == 1


def test_the_newest_checkpoint_with_all_that_is_owed(written):
    entries = written(
        ("seal", {}),
        ("checkpoint", {"checkpoint_id": 1, "pending": (owed(1),)}),
        ("checkpoint", {"checkpoint_id": 2, "pending": (owed(1), owed(2))}),
        ("savepoint", {"checkpoint_id": 3, "pending": (owed(2), owed(3))}),
        ("seal", {"generation": 2}),
    )
    plan = plan_recovery(entries, "r1")
    assert plan.restored.checkpoint_id == 2
    assert plan.permit_entry.permit.checkpoint_id == 2
    assert plan.permit_entry.permit.generation == 2
    assert {c.checkpoint_id for c in plan.pending} == {1, 2}
    assert plan.next_checkpoint_id == 1004  # 4 and more may have been given away by the leader before
    assert plan.fence == (("job", "r1"),)
    assert not plan.finishing


def test_ids_do_not_jump_under_one_leader_which_knows_those_it_has_given(written):
    entries = written(
        ("seal", {}), ("checkpoint", {"checkpoint_id": 1}), ("seal", {}), ("checkpoint", {"checkpoint_id": 2})
    )
    assert plan_recovery(entries, "r1").next_checkpoint_id == 3


def test_runs_that_never_had_a_checkpoint_are_fenced_too(written):
    entries = written(
        ("seal", {"run_id": "r1"}),
        ("checkpoint", {"checkpoint_id": 1, "run_id": "r1", "runs": ("r1",)}),
        ("seal", {"run_id": "r2", "generation": 2}),
        ("seal", {"run_id": "r3", "generation": 3}),
    )
    assert plan_recovery(entries, "r3").fence == (("job", "r1"), ("job", "r2"), ("job", "r3"))


def test_entries_of_an_old_leader_behind_a_seal_do_not_count(written, memory, manifest_of):
    from penstock.checkpoint.manifest_log import LogEntry, encode_manifest, key_of

    entries = written(("seal", {}), ("checkpoint", {"checkpoint_id": 1}), ("seal", {"generation": 2, "run_id": "r1"}))
    stale = manifest_of(checkpoint_id=9, generation=1, sequence=4)
    memory.put(key_of(4), encode_manifest(stale))
    entries = (*entries, LogEntry(manifest=stale, permit=entries[0].permit))
    assert [e.manifest.sequence for e in live_entries(entries)] == [1, 2, 3]
    assert plan_recovery(entries, "r1").restored.checkpoint_id == 1


def test_the_end_entry_knows_what_was_published(written):
    entries = written(
        ("seal", {}),
        ("checkpoint", {"checkpoint_id": 1, "pending": (owed(1),), "barrier": "final"}),
        ("end", {"pending": (), "pending_as_of": 2}),
        ("seal", {"generation": 2, "run_id": "r2"}),
    )
    plan = plan_recovery(entries, "r2")
    assert plan.pending == ()
    assert not plan.finishing


def test_an_end_entry_that_did_not_know_the_newest_checkpoint_releases_nothing(written):
    """Its append was of unknown fate, or the log not read yet: what the checkpoint owes is owed."""
    entries = written(
        ("seal", {}),
        ("checkpoint", {"checkpoint_id": 1, "pending": (owed(1),)}),
        ("end", {"pending": ()}),
        ("seal", {"generation": 2, "run_id": "r2"}),
    )
    assert plan_recovery(entries, "r2").pending == (owed(1),)


def test_a_last_cut_whose_end_is_missing_only_has_to_be_finished(written):
    entries = written(
        ("seal", {}), ("checkpoint", {"checkpoint_id": 1, "barrier": "stop"}), ("seal", {"generation": 2})
    )
    assert plan_recovery(entries, "r1").finishing
    assert not plan_recovery(entries, "r2").finishing


def test_fresh_forgets_state_and_output_but_fences(written):
    entries = written(
        ("seal", {}),
        ("checkpoint", {"checkpoint_id": 5, "pending": (owed(5),)}),
        ("seal", {"generation": 2, "run_id": "r2", "note": FRESH}),
    )
    plan = plan_recovery(entries, "r2")
    assert plan.restored is None
    assert plan.pending == ()
    assert plan.fence == (("job", "r1"), ("job", "r2"))
    assert plan.next_checkpoint_id == 6


def test_a_claimed_savepoint_is_continued_and_a_fork_leaves_its_output_alone(written, manifest_of):
    source = manifest_of("savepoint", job_name="old", checkpoint_id=8, run_id="r0", runs=("r0",), pending=(owed(8),))
    entries = written(("seal", {"run_id": "r1"}))
    claimed = plan_recovery(entries, "r1", source=source)
    assert claimed.restored is source
    assert claimed.pending == source.pending
    assert claimed.fence == (("old", "r0"), ("job", "r1"))
    assert claimed.permit_entry.permit.checkpoint_id == 8
    assert claimed.permit_entry.permit.run_id == "r0"
    assert claimed.next_checkpoint_id == 9
    fork = plan_recovery(entries, "r1", source=source, claim=False)
    assert fork.restored is source
    assert fork.pending == ()
    assert ("old", "r0") not in fork.fence


def test_the_runs_own_checkpoint_wins_over_the_savepoint_it_came_from(written, manifest_of):
    source = manifest_of("savepoint", checkpoint_id=3, run_id="r0")
    entries = written(("seal", {"run_id": "r1"}), ("checkpoint", {"checkpoint_id": 4, "run_id": "r1"}))
    assert plan_recovery(entries, "r1", source=source).restored.checkpoint_id == 4


def test_going_below_published_output_is_refused_unless_accepted(written, manifest_of):
    entries = written(
        ("seal", {}), ("savepoint", {"checkpoint_id": 1}), ("checkpoint", {"checkpoint_id": 2}),
        ("seal", {"generation": 2, "run_id": "r2"}),
    )  # fmt: skip
    source = entries[1].manifest
    with pytest.raises(StateMismatchError, match="--accept-duplicates"):
        check_source(entries, source, "r2", accept_duplicates=False)
    assert check_source(entries, source, "r2", accept_duplicates=True)
    assert not check_source(entries, entries[2].manifest, "r2", accept_duplicates=True)
    assert not check_source(entries[:2], source, "r2", accept_duplicates=False)
    stranger = manifest_of("savepoint", checkpoint_id=9, sequence=99, nonce="x", run_id="r9")
    with pytest.raises(StateMismatchError):
        check_source(entries, stranger, "r2", accept_duplicates=False)


def test_paths_of_a_savepoint_are_made_absolute(manifest_of):
    segment = Segment(
        file=FileRef(path="out/s.parquet"), position=1, writer="w", rows=1, hash_min=0, hash_max=1, namespace_min=0,
        namespace_max=0,
    )  # fmt: skip
    keyed = KeyedStateSnapshot(uid="u", state="s", schema="", hash_low=0, hash_high=1, segments=(segment,))
    pending = Committable(
        id="c", uid="out", run_id="r", subtask=0, checkpoint_id=1,
        files=(FileRef(path="p"), FileRef(path="s3://b/q"), FileRef(inline=b"x")),
    )  # fmt: skip
    manifest = manifest_of(
        subtasks=(SubtaskSnapshot(vertex_id="v", subtask=0, keyed=(keyed,), committables=(pending,)),),
        pending=(pending,),
    )
    moved = absolute_paths(manifest, "file:///sp/")
    assert moved.subtasks[0].keyed[0].segments[0].file.path == "file:///sp/out/s.parquet"
    assert [ref.path for ref in moved.pending[0].files] == ["file:///sp/p", "s3://b/q", ""]
    assert moved.subtasks[0].committables == moved.pending
