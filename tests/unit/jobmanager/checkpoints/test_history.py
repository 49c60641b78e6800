"""What is shown of checkpoints: the objects each of them wrote."""

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
    expected = [ExecutionId(vertex_id="v", subtask=i, attempt=0) for i in range(len(acks))]
    pending = SimpleNamespace(
        checkpoint_id=checkpoint_id,
        label="checkpoint",
        triggered_ms=0,
        expected=expected,
        acks=dict(zip(expected, acks, strict=True)),
    )
    history.triggered(pending)
    history.appended(checkpoint_id, checkpoint_id, "m", 10)


def test_an_object_counts_for_the_checkpoint_that_wrote_it():
    history = CheckpointHistory()
    inline = (FileRef(inline=b"few", length=3), FileRef(path="pending/1"))
    completed(history, 1, ack(0, "data/1", "data/1", sync_ms=1.5), ack(1, "data/1", "data/2", staged=inline))
    completed(history, 2, ack(0, "data/1", "data/3", sync_ms=0.5), ack(1, "data/1", "data/2"))
    entries = {e["id"]: e for e in flink_json.checkpoints(history.view((0, 0, 0)))["history"]}
    assert entries[1]["objects_written"] == 3 + 1, "two of state, one of output, the manifest"
    assert entries[2]["objects_written"] == 1 + 1
    assert (entries[1]["max_sync_duration"], entries[2]["max_sync_duration"]) == (1.5, 0.5)
