"""A JobManager that dies while a job is stopped or drained: whoever asked waits, and gets the one savepoint."""

import pytest
from tests.cluster import lifecycle
from tests.cluster.lifecycle import USERS, Place, saved
from tests.support.leases import PATIENT
from tests.support.waiting import wait_until

from penstock.api.job_file import planned
from penstock.client.executors import ClusterExecutor
from penstock.core.errors import UsageError

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

#: Where it dies.
KILLS = {
    "not in the log": "jobmanager.before_stop",
    "in the log": "jobmanager.during_stop",
    "its end in the log, and not recorded": "jobmanager.after_end",
}


@pytest.mark.parametrize(
    ("when", "action"),
    [
        ("not in the log", "stop"),
        pytest.param("in the log", "stop", marks=pytest.mark.nightly),
        ("in the log", "drain"),
        ("its end in the log, and not recorded", "stop"),
    ],
)
def test_a_jobmanager_that_dies_in_the_middle(tmp_path, when, action):
    failpoints = {"PENSTOCK_FAILPOINTS": f"{KILLS[when]}=kill", "PENSTOCK_FAILPOINT_DIR": str(tmp_path / "hits")}
    with lifecycle.cluster(tmp_path, environment=failpoints, restart_dead=True) as running:
        place, target = Place(running, tmp_path, "stopped"), tmp_path / "savepoints"
        job = ClusterExecutor(url=running.rest_url).submit(planned(place.file("first"), {}, ""))
        place.goes_on(job.job_id)
        stop = lambda token: job.stop(drain=action == "drain", target=str(target / "stopped"), token=token)
        uri = saved(place, stop("mine"), action)
        wait_until(lambda: returned(running), lambda: f"a dead JobManager's successor: {running.restarts}")
        _, closed = place.ended(job.job_id, uri)
        assert len(closed) == (USERS if action == "drain" else 0)
        assert stop("mine") == uri, "asked again"
        assert [path.name for path in (target / "stopped").iterdir()] == [uri.rpartition("/")[2]]
        with pytest.raises(Exception, match="is FINISHED"):
            stop("another")


def returned(cluster):
    """Whether the JobManager has died and its successor answers."""
    return cluster.restarts == ["jobmanager"] and cluster.jobmanager.alive and cluster.jobmanager.is_ready


def test_a_target_that_cannot_be_written_is_refused_and_the_job_goes_on(tmp_path):
    with lifecycle.cluster(tmp_path, environment=PATIENT) as running:
        place, file = Place(running, tmp_path, "kept"), tmp_path / "file"
        file.touch()
        job = ClusterExecutor(url=running.rest_url).submit(planned(place.file("first"), {}, ""))
        place.goes_on(job.job_id)
        second = place.file("second", step=lifecycle.STEP)
        for ask in (job.stop, job.savepoint, lambda target: job.upgrade(second, target=target)):
            with pytest.raises(UsageError, match=r"is not writable.*the request was refused"):
                ask(target=str(file))
        place.goes_on(job.job_id)
        assert place.rest.summary(job.job_id)["restarts"] == 0
