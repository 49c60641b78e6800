"""The other promises of the Kafka sink: an open transaction as the prepared state, and at least once."""

import pytest
from tests.cluster.harness import Scene
from tests.cluster.matrix import Cell, run_cell
from tests.cluster.orders import Orders

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
