"""A job on real processes follows the slots that there are, without a command, and its output is exact."""

import pytest
from tests.cluster.harness import Scene
from tests.cluster.orders import Orders
from tests.cluster.stage import s3_environment
from tests.support.leases import PATIENT

from penstock.client.local_cluster import LocalCluster, LocalClusterConfig

pytestmark = [pytest.mark.servers, pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

MOST = 6
JOB = {
    "parallelism": MOST,
    "environment": (
        'adaptive_scheduler={"enabled": True, "min_parallelism": 2, "resource_stabilization_timeout": "1s",'
        ' "scaling_interval": "1s"}'
    ),
}


@pytest.fixture
def scene(stage):
    """Two TaskManagers of two slots; none is started again."""
    config = LocalClusterConfig(
        taskmanagers=2,
        slots_per_taskmanager=2,
        directory=stage.folder / "cluster",
        environment=s3_environment(stage.minio) | PATIENT,
        restart_dead=False,
    )
    orders = Orders(34, 60_000, partitions=MOST)
    with LocalCluster(config) as cluster, Scene(stage, orders, cluster=cluster, rate=1_000, job=JOB) as found:
        yield found


def follows(scene, slots):
    """Wait until the job runs with that many slots, and has completed two more checkpoints and new output there."""
    widths = lambda: {vertex["parallelism"] for vertex in scene.rest.job(scene.job_id)["vertices"]}
    scene.wait(lambda: widths() == {slots} and scene.state() == "RUNNING", f"{slots} slots")
    completed, seen = scene.completed(), len(scene.rows())
    scene.wait_checkpoints(completed + 2)
    scene.wait(lambda: len(scene.rows()) > seen, "output", step=0.3)


def test_a_job_follows_four_two_and_six_slots_and_its_output_is_exact(scene):
    cluster = scene.cluster
    scene.submit()
    scene.feed.start()
    follows(scene, 4)
    assert scene.summary()["adaptive"] == {"slots": 4, "least": 2, "most": 6, "rescale-at": None}
    assert scene.rest.overview()["slots-pending"] == 2, "a cluster that can would grow"
    assert scene.rest.job(scene.job_id)["schedulerType"] == "Adaptive"
    cluster.taskmanagers[1].kill()
    follows(scene, 2)
    for index in (2, 3):
        cluster.taskmanagers.append(cluster._child(f"taskmanager-{index}", cluster._taskmanager_arguments(index)))
        cluster.taskmanagers[-1].start()
    follows(scene, 6)
    assert scene.rest.overview()["slots-pending"] == 0
    assert scene.summary()["restarts"] == 1
    scene.feed.join()
    scene.wait_finished()
    scene.check_exact()
    scene.check_whole()
