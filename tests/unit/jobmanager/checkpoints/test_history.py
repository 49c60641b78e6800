"""What is shown of checkpoints: the objects each of them wrote."""

from dataclasses import replace
from types import SimpleNamespace

from penstock.checkpoint.coordinator import Ack
from penstock.core.snapshot import (
    CheckpointMetrics,
    Committable,
    FileRef,
    KeyedStateSnapshot,
    Segment,
    SubtaskSnapshot,
)
from penstock.graph.task_deployment import ExecutionId
from penstock.jobmanager.checkpoints.checkpoint_history import CheckpointHistory
from penstock.rest.flink import documents as flink_json


def ack(subtask, *paths, staged=(), sync_ms=0.0):
    segments = tuple(
        Segment(
            file=FileRef(path=p),
            position=i,
            writer="w",
            rows=1,
            hash_min=0,
            hash_max=0,
            namespace_min=0,
            namespace_max=0,
        )
        for i, p in enumerate(paths)
    )
    owed = Committable(id="c", uid="u", run_id="r", subtask=subtask, checkpoint_id=1, files=staged)
    snapshot = SubtaskSnapshot(
        vertex_id="v",
        subtask=subtask,
        keyed=(KeyedStateSnapshot(uid="u", state="s", schema="", hash_low=0, hash_high=0, segments=segments),),
        committables=(owed,),
    )
    return Ack(snapshot=snapshot, metrics=CheckpointMetrics(sync_ms=sync_ms), at_ms=5)


def completed(history, checkpoint_id, *acks):
    triggered(history, checkpoint_id, *acks)
    history.appended(checkpoint_id, checkpoint_id, "m", 10)


def triggered(history, checkpoint_id, *acks):
    expected = [ExecutionId(vertex_id="v", subtask=i, attempt=0) for i in range(len(acks))]
    pending = SimpleNamespace(
        checkpoint_id=checkpoint_id,
        label="checkpoint",
        triggered_ms=0,
        expected=expected,
        acks=dict(zip(expected, acks, strict=True)),
    )
    history.triggered(pending)


def test_checkpoints_are_listed_in_the_order_of_their_ends():
    history = CheckpointHistory()
    for number in (1, 2, 3):
        triggered(history, number, ack(0))
    history.aborted(2, "declined", 10)
    history.appended(1, 1, "m", 11)
    assert [view.id for view in history.ended(1)] == [1]
    assert [(view.id, view.status) for view in history.ended(9)] == [(2, "FAILED"), (1, "COMPLETED")]


def test_an_object_counts_for_the_checkpoint_that_wrote_it():
    history = CheckpointHistory()
    inline = (FileRef(inline=b"few", length=3), FileRef(path="pending/1"))
    completed(history, 1, ack(0, "data/1", "data/1", sync_ms=1.5), ack(1, "data/1", "data/2", staged=inline))
    completed(history, 2, ack(0, "data/1", "data/3", sync_ms=0.5), ack(1, "data/1", "data/2"))
    entries = {e["id"]: e for e in flink_json.checkpoints(history.view((0, 0, 0)))["history"]}
    assert entries[1]["objects_written"] == 3 + 1, "two of state, one of output, the manifest"
    assert entries[2]["objects_written"] == 1 + 1
    assert (entries[1]["max_sync_duration"], entries[2]["max_sync_duration"]) == (1.5, 0.5)


def test_a_checkpoint_whose_barriers_overtook_rows_is_unaligned_with_their_bytes():
    history = CheckpointHistory()
    overtaken = CheckpointMetrics(unaligned=True, persisted_bytes=70)
    completed(history, 1, ack(0), replace(ack(1), metrics=overtaken))
    completed(history, 2, ack(0), ack(1))
    entries = {e["id"]: e for e in flink_json.checkpoints(history.view((0, 0, 0)))["history"]}
    assert [(entries[i]["unaligned"], entries[i]["persisted_data"]) for i in (1, 2)] == [(True, 70), (False, 0)]


def counted(**counts):
    return replace(ack(0), metrics=CheckpointMetrics(counts=counts))


def restore(history, checkpoint_id):
    history.was_restored(
        SimpleNamespace(checkpoint_id=checkpoint_id, created_ms=0, savepoint_uri=""), 5, savepoint=False
    )
    return {vertex: dict(counts) for vertex, counts in history.totals.items()}


def test_totals_continue_from_the_restored_checkpoint():
    history = CheckpointHistory()
    assert restore(history, 9) == {}  # of an earlier leader: its counts are not known
    completed(history, 1, counted(rows=10), counted(rows=5, bad=1))
    completed(history, 2, counted(rows=20), counted(rows=8, bad=1))
    assert restore(history, 2) == {"v": {"rows": 28, "bad": 1}}
    assert restore(history, 2) == {"v": {"rows": 28, "bad": 1}}  # no checkpoint since
    completed(history, 3, counted(rows=1), counted(rows=1))
    assert restore(history, 3) == {"v": {"rows": 30, "bad": 1}}


def test_totals_go_back_with_a_rollback():
    history = CheckpointHistory()
    completed(history, 1, counted(rows=10))
    restore(history, 1)
    completed(history, 2, counted(rows=4))  # of the new version
    assert restore(history, 2) == {"v": {"rows": 14}}
    assert restore(history, 1) == {"v": {"rows": 10}}
    assert history.newest_totals == {"v": {"rows": 10}}, "the checkpoints of the new version do not count any more"
