"""Leaders that fail again and again under a running job: how long its output and its control plane stand still."""

import json
import os
import random
import signal
import statistics
import time
import urllib.request
from dataclasses import dataclass

from tests.cluster.arrivals import Arrivals
from tests.cluster.harness import Scene
from tests.cluster.orders import Orders
from tests.support.waiting import patience

FAULTS = ("killed", "paused", "killed with a worker")
#: Orders a second; each is as many milliseconds of event time after the last, so that four windows a second end.
RATE, STEP_MS = 1_000, 4.0
INTERVAL = "300ms"
#: After a change the output is looked at for so long; a change takes about so long beside its pause.
AROUND_S, CHANGE_S = 5.0, 20.0


@dataclass(frozen=True)
class Change:
    """What one fault of the leader cost, in seconds."""

    #: Until another JobManager led, and until it had completed a checkpoint.
    led_s: float
    checkpoint_s: float
    #: The longest time without a published row, from the fault until the leader was back.
    gap_s: float
    #: The job kept all its workers.
    kept: bool


def asked(url, path):
    with urllib.request.urlopen(f"{url}{path}", timeout=30 * patience()) as answer:
        return json.load(answer)


def role(url):
    try:
        return asked(url, "/v1/penstock/leader")["role"]
    except OSError:
        return ""


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


def workers(scene):
    return {int(worker["pid"]) for worker in scene.rest.workers(scene.job_id)}


def fail_once(scene, arrivals, children, fault, pause_s):
    """Kill the leader, or pause it for `pause_s`, and bring it back."""
    scene.wait(lambda: sum(role(url) == "standby" for url in children) == len(children) - 1, "all standbys")
    url = next(url for url in children if role(url) == "leader")
    victim, before = children[url], workers(scene)
    time.sleep(AROUND_S / 2)
    begun = time.monotonic()
    if fault == "paused":
        os.kill(victim.pid, signal.SIGSTOP)
    else:
        victim.kill()
    if fault == "killed with a worker":
        os.kill(min(before), signal.SIGKILL)
    try:
        led_s, checkpoint_s = changed(scene, victim, url)
        time.sleep(max(0.0, (pause_s if fault == "paused" else 0.0) - (time.monotonic() - begun)))
    finally:
        if fault == "paused":
            os.kill(victim.pid, signal.SIGCONT)
        else:
            victim.start()
    time.sleep(AROUND_S)
    gap_s = arrivals.gap(scene.sink, begun, time.monotonic())
    return Change(led_s, checkpoint_s, gap_s, workers(scene) == before)


def leaders_fail(stage, fault, times, pauses_s, tell=lambda _: None, ha_root=None):
    """Let the leader of three fail `times` under the main job, check its output, return what each time cost.

    `pauses_s`: least and most seconds of a pause, drawn with a seed. `ha_root`: a URI; None: a folder.
    """
    chance = random.Random(7)
    lengths = [chance.uniform(*pauses_s) if fault == "paused" else 0.0 for _ in range(times)]
    steady_s = sum(lengths) + times * (CHANGE_S + AROUND_S)
    orders = Orders(32, int(2 * RATE * steady_s), step_ms=STEP_MS)  # the second half goes out at the end
    found = []
    options = {"jobmanagers": 3, "watch": False, "job": {"interval": INTERVAL}, "ha_root": ha_root}
    with Scene(stage, orders, rate=RATE, **options) as scene:
        names = [scene.cluster.jobmanager, *scene.cluster.standbys]
        children = dict(zip(scene.cluster.address.split(","), names, strict=True))
        scene.begin()
        arrivals = Arrivals(stage.bootstrap, {scene.sink: 2})
        arrivals.start()
        scene.wait(lambda: arrivals.seen[scene.sink], "output")
        for length in lengths:
            found.append(fail_once(scene, arrivals, children, fault, length))
            tell(found[-1])
        assert scene.feed.sent <= orders.events // 2, "the feed had become slow: gaps are its own"
        arrivals.end()
        scene.feed.join(seconds=300)
        scene.wait_finished()
        scene.check_exact()
        scene.check_whole()
    return found


def figures(found):
    """Median and largest of each time; gaps apart where the workers were kept and where not."""
    groups = {
        "another leads": [change.led_s for change in found],
        "next checkpoint": [change.checkpoint_s for change in found],
        "gap, workers kept": [change.gap_s for change in found if change.kept],
        "gap, job restarted": [change.gap_s for change in found if not change.kept],
    }
    shown = {}
    for what, seconds in groups.items():
        if seconds:
            median, largest = round(statistics.median(seconds), 2), round(max(seconds), 2)
            shown[what] = {"times": len(seconds), "p50_s": median, "largest_s": largest}
    return shown
