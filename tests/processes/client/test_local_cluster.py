"""What a local cluster makes of children that end."""

import pytest

from penstock.client.local_cluster import LocalCluster, LocalClusterConfig
from penstock.core.errors import PenstockError


@pytest.fixture
def cluster(tmp_path):
    made = LocalCluster(LocalClusterConfig(taskmanagers=1, slots_per_taskmanager=None, directory=tmp_path))
    yield made
    made.close()


def ended_child(cluster):
    child = cluster._child("taskmanager-0", ["nonsense"])
    cluster.taskmanagers.append(child)
    child.start()
    child.process.wait(30)
    return child


def test_a_taskmanager_that_cannot_start_is_an_error_with_its_log(cluster):
    child = ended_child(cluster)
    with pytest.raises(PenstockError, match="taskmanager-0 ended while starting: KeyError: 'nonsense'") as raised:
        cluster.check()
    assert str(child.log_file) in raised.value.hint


def test_one_that_was_ready_before_is_not(cluster):
    child = ended_child(cluster)
    child.ready_file.write_text("tm-0 1")
    cluster.check()
    child.ready_file.unlink()
    cluster.check()


def test_slots_are_said_once_the_job_is_known(cluster):
    child = cluster._child("taskmanager-0", cluster._taskmanager_arguments(0))
    assert child.arguments[child.arguments.index("--slots") + 1] == "0"
    cluster.taskmanagers.append(child)
    cluster.set_slots(3)
    assert child.arguments[child.arguments.index("--slots") + 1] == "3"
    assert not child.reads_stdin
