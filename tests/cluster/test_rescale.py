"""A running job on real processes is rescaled, from Kafka to Kafka, and its output stays exact."""

import pytest
from tests.cluster.harness import Scene
from tests.cluster.orders import Orders
from tests.cluster.proc_tree import wait_until

from penstock.client.handle import JobHandle
from penstock.client.rest_client import RestClient
from penstock.core.errors import PenstockError

pytestmark = [pytest.mark.servers, pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(180)]

EVENTS, RATE = 24_000, 3_000


def widths(scene):
    return {v["parallelism"] for v in scene.rest.job(scene.job_id)["vertices"]}


def rescale(scene, parallelism):
    with RestClient(scene.cluster.rest_url, timeout_seconds=30) as rest:
        JobHandle(rest, scene.job_id, scene.name).rescale(parallelism, timeout_ms=40_000)


def test_up_and_down_while_rows_come(stage):
    with Scene(stage, Orders(31, EVENTS), rate=RATE, taskmanagers=3) as scene:
        scene.begin()
        scene.wait_checkpoints(2)
        first = widths(scene)
        for parallelism in (3, 1):
            with pytest.raises(PenstockError, match="no slots"):
                rescale(scene, 7)
            done = scene.completed()
            rescale(scene, parallelism)
            assert widths(scene) == {parallelism} != first
            scene.wait_checkpoints(done + 2)
        assert scene.summary()["restarts"] == 0
        scene.feed.join(30)
        scene.wait_finished()
        scene.check_exact()


@pytest.mark.parametrize("point", ["before_rescale_record", "after_rescale_record"])
def test_a_jobmanager_that_dies_in_the_middle(stage, point):
    """Recorded, its successor finishes it; not recorded, the same request, asked again, begins anew."""
    with Scene(
        stage, Orders(32, EVENTS), rate=RATE, taskmanagers=3, failpoints={f"jobmanager.{point}": "kill"}
    ) as scene:
        scene.begin()
        scene.wait_checkpoints(2)
        with RestClient(scene.cluster.rest_url) as rest:
            rest.rescale(scene.job_id, 3, token="mine")
        wait_until(lambda: scene.cluster.restarts, 30, "a dead JobManager", step=0.1)
        scene.wait_state(("RUNNING",))
        assert widths(scene) == ({3} if point == "after_rescale_record" else {2})
        with RestClient(scene.cluster.rest_url, timeout_seconds=30) as rest:
            JobHandle(rest, scene.job_id, scene.name).rescale(3, token="mine", timeout_ms=40_000)
        assert widths(scene) == {3}
        scene.feed.join(30)
        scene.wait_finished()
        scene.check_exact()
