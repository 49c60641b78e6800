"""Two JobManagers over one HA root: the standby takes over, all find the new leader, the output stays exact."""

import json
import os
import signal
import time
import urllib.request

import pytest
from tests.cluster import proc_tree
from tests.cluster.harness import Scene
from tests.cluster.orders import Orders
from tests.support.leases import PATIENT
from tests.support.waiting import patience, wait_until

pytestmark = [pytest.mark.servers, pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

EVENTS, RATE = 12_000, 4_000
#: Short enough to wait for, too long for a busy machine to change the leader.
LEASES = PATIENT | {
    "PENSTOCK__JOBMANAGER__LEADER_LEASE_MS": "10000",
    "PENSTOCK__JOBMANAGER__RECONCILE_TIMEOUT_MS": "30000",
}


def asked(url, path):
    with urllib.request.urlopen(f"{url}{path}", timeout=30 * patience()) as answer:
        return json.load(answer)


def role(url):
    try:
        return asked(url, "/v1/penstock/leader")["role"]
    except OSError:
        return ""


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


def changed(scene, victim, url):
    """Seconds from now until another JobManager leads, and until it has completed a checkpoint of the job."""
    begun, others = time.monotonic(), [other for other in scene.cluster.address.split(",") if other != url]

    def leads():
        return next((other for other in others if role(other) == "leader"), "")

    def completed():
        try:
            return asked(leader, f"/v1/penstock/jobs/{scene.job_id}/summary")["checkpoints-completed"]
        except OSError:
            return 0

    leader = scene.wait(leads, f"a successor of {victim.name}", step=0.02)
    led_s = time.monotonic() - begun
    scene.wait(completed, f"a checkpoint under {leader}", step=0.02)
    return led_s, time.monotonic() - begun


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("fault", ["killed", "paused"])
def test_leaders_fail_twenty_times(stage, paused, fault):
    """Prints how long each change took."""
    found = []
    with Scene(stage, Orders(32, 100_000), rate=2_000, jobmanagers=3, watch=False) as scene:
        children = dict(
            zip(scene.cluster.address.split(","), [scene.cluster.jobmanager, *scene.cluster.standbys], strict=True)
        )
        scene.begin()
        for _ in range(20):
            scene.wait(lambda: sum(role(url) == "standby" for url in children) == 2, "two standbys")
            url = next(url for url in children if role(url) == "leader")
            victim = children[url]
            if fault == "killed":
                victim.kill()
            else:
                paused.append(victim.pid)
                os.kill(victim.pid, signal.SIGSTOP)
            found.append(changed(scene, victim, url))
            if fault == "killed":
                victim.start()
            else:
                os.kill(victim.pid, signal.SIGCONT)
        scene.feed.join()
        scene.wait_finished()
        scene.check_exact()
        scene.check_whole()
    for number, what in enumerate(("another leads", "the next checkpoint")):
        seconds = sorted(gap[number] for gap in found)
        print(f"{fault}, {what}: p50 {seconds[10]:.2f} s, largest {seconds[-1]:.2f} s")
