"""Two JobManagers over one HA root: the standby takes over, all find the new leader, the output stays exact."""

import os
import signal
import urllib.request

import pytest
from tests.cluster import proc_tree
from tests.cluster.harness import Scene
from tests.cluster.leader_faults import FAULTS, asked, figures, leaders_fail, role
from tests.cluster.orders import Orders
from tests.support.leases import PATIENT
from tests.support.waiting import patience, wait_until

pytestmark = [pytest.mark.servers, pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

EVENTS, RATE = 12_000, 4_000
#: Too long for a busy machine to change the leader; one that is killed or hands over is replaced at once.
LEASES = PATIENT | {
    "PENSTOCK__JOBMANAGER__LEADER_LEASE_MS": "60000",
    "PENSTOCK__JOBMANAGER__RECONCILE_TIMEOUT_MS": "30000",
}


def follows(url):
    """Return whether a JobManager is a standby that knows the leader."""
    try:
        found = asked(url, "/v1/penstock/leader")
    except OSError:
        return False
    return found["role"] == "standby" and found["leader"] is not None


def workers_started(scene):
    logs = scene.cluster.directory.glob("taskmanager-*.log")
    return sum(log.read_text().count(" runs as process ") for log in logs)


def test_a_standby_takes_over_from_a_killed_leader(stage):
    with Scene(stage, Orders(31, EVENTS), rate=RATE, jobmanagers=2, watch=False, leases=LEASES) as scene:
        first, second = scene.cluster.address.split(",")
        scene.begin()
        scene.wait_checkpoints(2)
        wait_until(lambda: role(second) == "standby", "the standby", step=0.1)
        assert asked(second, "/v1/jobs/overview")["jobs"][0]["jid"] == scene.job_id, "it does not forward"
        scene.cluster.jobmanager.kill()
        wait_until(lambda: role(second) == "leader", "the standby to lead", step=0.1)
        scene.cluster.jobmanager.start()
        wait_until(lambda: follows(first), "the killed one to come back as a standby", step=0.1)
        assert asked(first, f"/v1/penstock/jobs/{scene.job_id}/summary")["jobmanagers-replaced"]["times"] == 1
        scene.feed.join()
        scene.wait_finished()
        scene.check_exact()
        scene.check_whole()
        assert workers_started(scene) == 2, "the new leader has not kept the workers"


def test_a_leader_hands_over_without_a_new_worker(stage):
    with Scene(stage, Orders(33, EVENTS), rate=RATE, jobmanagers=2, watch=False, leases=LEASES) as scene:
        first, second = scene.cluster.address.split(",")
        scene.begin()
        scene.wait_checkpoints(2)
        wait_until(lambda: follows(second), "the standby", step=0.1)
        urllib.request.urlopen(f"{second}/v1/penstock/leader/hand-over", data=b"", timeout=30 * patience()).close()
        wait_until(lambda: role(second) == "leader", "the standby to lead", step=0.1)
        wait_until(lambda: follows(first), "the earlier leader to become a standby", step=0.1)
        scene.feed.join()
        scene.wait_finished()
        scene.check_exact()
        scene.check_whole()
        assert workers_started(scene) == 2, "the new leader has not kept the workers"


def test_a_paused_leader_that_was_succeeded_appends_nothing_and_becomes_a_standby(stage, paused):
    """It is paused between the last acknowledgement and the append of the manifest."""
    point = "jobmanager.before_manifest"
    options = {"failpoints": {point: "hold@3"}, "watch": False, "jobmanagers": 2}
    with Scene(stage, Orders(3, EVENTS), rate=RATE, **options) as scene:
        first, second = scene.cluster.address.split(",")
        scene.begin()
        scene.wait_hit(point)
        old = scene.cluster.jobmanager
        paused.append(old.pid)
        os.kill(old.pid, signal.SIGSTOP)
        cuts = lambda: [e for e in scene.manifests() if e["kind"] == "checkpoint"]
        scene.wait(lambda: cuts()[-1]["generation"] > 1, "a checkpoint of the second leader")
        taken_over = scene.manifests()[-1]["sequence"]
        scene.release(point)
        assert proc_tree.stopped(old.pid), "the old leader ended before it was resumed: nothing is shown"
        os.kill(old.pid, signal.SIGCONT)
        found = asked(first, "/v1/penstock/leader")
        assert found["role"] == "standby", "its first answer says that it leads"
        assert asked(first, f"/v1/jobs/{scene.job_id}")["state"] in ("RUNNING", "FINISHED"), "it does not forward"
        assert asked(first, "/v1/penstock/leader")["leader"]["url"] == second
        scene.feed.join()
        scene.wait_finished()
        scene.check_exact()
        scene.check_whole()
        assert {e["generation"] for e in scene.manifests() if e["sequence"] > taken_over} <= {2}
        assert old.alive


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("fault", FAULTS)
def test_leaders_fail_twenty_times(stage, fault):
    """Prints how long each change took."""
    found = leaders_fail(stage, fault, times=20, pauses_s=(3.0, 10.0))
    print(fault, figures(found))
