"""A run on trial is a recovery point for itself alone, and nothing it wrote is published before it is released."""

from __future__ import annotations

import pytest
from tests.unit.checkpoint.test_recovery import owed, written

from penstock.checkpoint.recovery import current_history, plan_recovery, present_manifests
from penstock.checkpoint.retention import plan_retention
from penstock.core.snapshot import Committable, FileRef

__all__ = ["written"]

ON_TRIAL = {"run_id": "r2", "upgrade_of": 2, "on_trial": True, "held": ("out",)}


def base(barrier="checkpoint"):
    return [("seal", {}), ("checkpoint", {"checkpoint_id": 1, "pending": (owed(1),), "barrier": barrier})]


def tried(*more, barrier="checkpoint"):
    return [
        *base(barrier),
        ("seal", ON_TRIAL),
        ("checkpoint", {"checkpoint_id": 2, "run_id": "r2", "pending": (owed(1), owed(2, "r2")), "held": ("out",)}),
        *more,
    ]


def test_the_trial_itself_goes_on_from_its_checkpoint_and_its_output_stays_held(written):
    plan = plan_recovery(written(*tried()), "r2")
    assert plan.restored.checkpoint_id == 2
    assert [c.id for c in plan.pending] == ["out/r1/0/1"]
    assert [c.id for c in plan.held] == ["out/r2/0/2"]
    assert plan.trial.open
    assert plan.abandoned == frozenset()


def test_for_every_other_run_the_log_ends_where_the_trial_began(written):
    entries = written(*tried(("seal", {"run_id": "r3"})))
    plan = plan_recovery(entries, "r3")
    assert plan.restored.checkpoint_id == 1
    assert ([c.id for c in plan.pending], plan.held, plan.trial) == (["out/r1/0/1"], (), None)
    assert plan.abandoned == {4}
    assert plan.fence == (("job", "r1"), ("job", "r2"), ("job", "r3"))
    assert plan.next_checkpoint_id > 2
    assert [m.sequence for m in present_manifests([e.manifest for e in entries])] == [1, 2, 3, 5]
    assert current_history(entries)[-1].manifest.run_id == "r3"


@pytest.mark.parametrize("reader", ["r2", "r9"])
def test_released_it_counts_like_any_other(written, reader):
    released = ("seal", {"run_id": "r2", "upgrade_of": 2})
    plan = plan_recovery(written(*tried(released)), reader)
    assert plan.restored.checkpoint_id == 2
    assert (plan.held, plan.abandoned) == ((), frozenset())
    assert {c.id for c in plan.pending} == {"out/r1/0/1", "out/r2/0/2"}


def test_a_leader_that_sealed_without_knowing_of_the_release_does_not_undo_it(written):
    entries = written(*tried(("seal", {"run_id": "r2", "upgrade_of": 2}), ("seal", {**ON_TRIAL, "generation": 2})))
    plan = plan_recovery(entries, "r2")
    assert (plan.trial.open, plan.held) == (False, ())


def test_from_a_stop_nothing_is_owed_any_more(written):
    entries = written(*base("stop"), ("seal", ON_TRIAL))
    plan = plan_recovery(entries, "r2")
    assert (plan.restored.pending, plan.pending, plan.finishing) == ((), (), False)
    assert plan_recovery(entries, "r1").finishing  # not recorded: the old version is at its stop still
    assert not plan_recovery(entries, "r3").finishing  # it comes back under another id, and goes on


def test_a_job_that_was_cancelled_on_trial_goes_on_from_before(written):
    ended = ("end", {"run_id": "r2", "note": "CANCELED", "pending": (), "pending_as_of": 4})
    plan = plan_recovery(written(*tried(ended, ("seal", {"run_id": "r4", "generation": 2}))), "r4")
    assert plan.restored.checkpoint_id == 1
    assert [c.id for c in plan.pending] == ["out/r1/0/1"]


def test_files_of_a_trial_that_was_taken_back_go_and_its_base_stays(manifest_of):
    def output(path):
        return Committable(id=path, uid="o", run_id="r", subtask=0, checkpoint_id=1, files=(FileRef(path=path),))

    history = [
        manifest_of(sequence=1, pending=(output("pending/base"),)),
        manifest_of(sequence=2, pending=(output("pending/trial"),)),
        manifest_of(sequence=3, pending=(output("pending/trial"), output("pending/trial-2"))),
        manifest_of(sequence=4),
    ]
    plan = plan_retention(history, 3, abandoned={2, 3})
    assert plan.sequences == (2, 3)
    assert plan.files == ("pending/trial", "pending/trial-2")
    assert plan_retention(history[:3], 1, pinned={1}).sequences == (2,)
