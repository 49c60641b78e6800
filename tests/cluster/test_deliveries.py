"""The other promises to a Kafka topic: an open transaction as the prepared state; sinks, checkpoints at least once."""

import pytest
from tests.cluster.harness import Scene
from tests.cluster.matrix import Cell, run_cell
from tests.cluster.orders import Orders
from tests.support.jobs import overlapping

pytestmark = [pytest.mark.servers, pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    "cell",
    [
        Cell("task.after_ack", "worker", 1),
        Cell("jobmanager.after_manifest", "jobmanager", 0),
        pytest.param(Cell("sink.before_publish", "worker", 1), marks=pytest.mark.nightly),
        Cell("sink.after_commit", "taskmanager", 0),
    ],
    ids=lambda cell: f"{cell.point}-{cell.victim}",
)
def test_two_phase_commit_is_exact(stage, cell):
    record = run_cell(stage, cell, delivery="exactly-once-2pc")
    assert record.exact, record


def test_at_least_once_loses_nothing(stage):
    job = {"delivery": "at-least-once"}
    with Scene(stage, Orders(41, 12_000), job=job) as scene:
        scene.begin()
        scene.wait_rows()
        scene.look_at_workers()
        scene.kill(scene.victim_pid("worker"))
        scene.feed.join()
        scene.wait_finished()
        found = scene.verdict()
        assert (found.missing, found.wrong) == (0, 0)


@pytest.mark.nightly
def test_checkpoints_without_alignment_that_overlap_lose_nothing(stage):
    settings = 'checkpoint_mode="at-least-once", max_concurrent_checkpoints=2'
    with Scene(stage, Orders(42, 12_000), job={"interval": "20ms", "environment": settings}) as scene:
        scene.begin()
        history = lambda: scene.rest.checkpoints(scene.job_id)["history"]
        scene.wait(lambda: overlapping(history()), "a checkpoint that begins before the one before it is complete")
        scene.wait_rows()
        scene.look_at_workers()
        killed = scene.victim_pid("worker")
        scene.kill(killed)
        scene.wait_replaced({killed})
        scene.feed.join()
        scene.wait_finished()
        found = {}
        for user, start, count, _total in scene.rows():
            found[user, start] = max(count, found.get((user, start), 0))
        expected = {window: count for window, (count, _total) in scene.orders.windows().items()}
        assert found.keys() == expected.keys()
        assert not {window: (found[window], count) for window, count in expected.items() if found[window] < count}
        assert scene.summary()["restarts"] >= 1
