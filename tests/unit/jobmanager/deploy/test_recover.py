"""What a (re)start takes from a savepoint whose operators are not all in the job any more."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.jobmanager.conftest import JOB, SOURCE, make_graph

from penstock.checkpoint.manifest_log import LogEntry, Manifest
from penstock.checkpoint.recovery import RecoveryPlan
from penstock.core.errors import StateMismatchError
from penstock.core.permits import CommitPermit
from penstock.core.snapshot import Committable, OperatorStateSnapshot, SubtaskSnapshot
from penstock.jobmanager.deploy.deployment import Recovered
from penstock.jobmanager.deploy.job_log import JobIdentity, plan_restore, require_resumable
from penstock.jobmanager.messages.events import LogRead

PERMIT = CommitPermit(job_id=JOB, run_id="r2", generation=2, checkpoint_id=0, manifest_sequence=1)
ME = JobIdentity(job_id=JOB, run_id="r2", generation=2)
LEAVE = JobIdentity(job_id=JOB, run_id="r2", generation=2, allow_non_restored_state=("gone",))


def savepoint(**changes) -> Manifest:
    left = tuple(
        SubtaskSnapshot(
            vertex_id=SOURCE,
            subtask=i,
            operator=(OperatorStateSnapshot(uid="gone", name="s", mode="list", items=(1,)),),
        )
        for i in range(2)
    )
    values = {
        "kind": "savepoint",
        "sequence": 4,
        "job_id": JOB,
        "job_name": "job",
        "run_id": "r1",
        "generation": 1,
        "nonce": "n",
        "created_ms": 0,
        "checkpoint_id": 7,
        "operators": {"gone": (2, SOURCE), "src": (2, SOURCE)},
        "subtasks": left,
        "runs": ("r1",),
    }
    return Manifest(**{**values, **changes})


def log_from(source: Manifest) -> LogRead:
    seal = savepoint(kind="seal", sequence=1, run_id="r2", generation=2, checkpoint_id=None, operators={}, subtasks=())
    return LogRead(entries=(LogEntry(manifest=seal, permit=PERMIT),), source=source)


def test_state_of_an_operator_that_is_gone_is_left_behind_only_when_allowed():
    read = log_from(savepoint())
    with pytest.raises(StateMismatchError, match="no operator of that uid") as caught:
        plan_restore(make_graph(), ME, read, deployed_before=False)
    assert "--allow-non-restored-state" in caught.value.hint
    recovered = plan_restore(make_graph(), LEAVE, read, deployed_before=False)
    assert recovered.restore is not None
    assert recovered.restore.restores == {}
    assert recovered.restore.checkpoint_id == 7


def test_names_are_of_the_savepoint_and_not_of_the_runs_own_checkpoints():
    source = savepoint()
    own = savepoint(kind="checkpoint", sequence=5, run_id="r2", generation=2, graph_fingerprint="f")
    (seal,) = log_from(source).entries
    read = LogRead(entries=(seal, LogEntry(manifest=own, permit=PERMIT)), source=source)
    with pytest.raises(StateMismatchError, match="no operator of that uid"):
        plan_restore(make_graph(), LEAVE, read, deployed_before=True)


def test_unpublished_output_is_never_left_behind():
    owed = Committable(id="c", uid="old-sink", run_id="r1", subtask=0, checkpoint_id=7, rows=3)
    source = msgspec.structs.replace(savepoint(), pending=(owed,))
    with pytest.raises(StateMismatchError, match="sink 'old-sink' has unpublished output"):
        plan_restore(make_graph(), LEAVE, log_from(source), deployed_before=False)


@pytest.mark.parametrize(
    ("root", "bounded", "first"),
    [
        ("s3://bucket", False, "`penstock state repartition s3://bucket/"),
        (
            "s3://bucket",
            True,
            "start over with `penstock run --fresh`; or, to keep the state, `penstock state repartition s3://",
        ),
        (
            "/checkpoints",
            False,
            "start over with `penstock run --fresh`; or, to keep the state, `penstock state repartition /check",
        ),
    ],
)
def test_a_changed_job_starts_over_first_if_it_is_bounded_or_local(root, bounded, first):
    own = savepoint(kind="checkpoint", graph_fingerprint="another", operators={}, subtasks=())
    with pytest.raises(StateMismatchError) as caught:
        require_resumable(
            make_graph(bounded=bounded, checkpoint_root=root), "r2", [LogEntry(manifest=own, permit=PERMIT)]
        )
    assert caught.value.hint.startswith(first)


def test_a_recovery_tells_how_many_runs_lose_output():
    plan = RecoveryPlan(None, None, (), (("job", "r0"), ("job", "r1")), 1, ())
    assert Recovered(plan, None, plan.fence).text.endswith(
        "; uncommitted output of 2 earlier runs is discarded, and its rows are read again"
    )
