"""A running job on real processes is rescaled, from Kafka to Kafka, and its output stays exact."""

import pytest
from tests.cluster.harness import Scene
from tests.cluster.orders import Orders
from tests.support.leases import PATIENT

from penstock.client.handle import JobHandle
from penstock.core.errors import PenstockError

pytestmark = [pytest.mark.servers, pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

EVENTS, RATE = 12_000, 3_000


def widths(scene):
    return {v["parallelism"] for v in scene.rest.job(scene.job_id)["vertices"]}


def rescale(scene, parallelism, **options):
    JobHandle(scene.rest, scene.job_id, scene.name).rescale(parallelism, **options)


def test_up_and_down_while_rows_come(stage):
    """The next workers load their state first. A rescale that has no slots changes nothing."""
    job = {"environment": "prepare_state_bytes=0"}
    with Scene(stage, Orders(31, EVENTS), rate=RATE, taskmanagers=3, leases=PATIENT, job=job) as scene:
        scene.begin()
        scene.wait_checkpoints(2)
        first = widths(scene)
        with pytest.raises(PenstockError, match="no slots"):
            rescale(scene, 7)
        for parallelism in (3, 1):
            done = scene.completed()
            rescale(scene, parallelism)
            assert widths(scene) == {parallelism} != first
            scene.wait_checkpoints(done + 2)
        story = [entry["text"] for entry in scene.rest.story(scene.job_id)]
        assert sum("the next workers load" in text for text in story) == 2
        assert not any("state is read after the stop" in text for text in story)
        assert scene.rest.summary(scene.job_id)["restarts"] == 0
        scene.feed.join()
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
        scene.ask_in_background(lambda rest: rest.rescale(scene.job_id, 3, token="mine"))
        scene.wait_restarted()
        scene.wait_state(("RUNNING",))
        assert widths(scene) == ({3} if point == "after_rescale_record" else {2})
        rescale(scene, 3, token="mine")
        assert widths(scene) == {3}
        scene.feed.join()
        scene.wait_finished()
        scene.check_exact()
