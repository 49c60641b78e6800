"""A running job on real processes goes on as another version, or is taken back by itself; judged from outside."""

import contextlib
import re
import threading
from dataclasses import replace

import pytest
from tests.cluster.harness import PATIENT_S, Scene
from tests.cluster.job_file import Job
from tests.cluster.orders import Orders
from tests.cluster.stage import graph_of

from penstock.client.handle import JobHandle
from penstock.client.rest_client import RestClient
from penstock.core.errors import PenstockError, UsageError
from penstock.snapshots.access.opening import open_snapshot

pytestmark = [pytest.mark.servers, pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

TASKMANAGERS = 3
EVENTS, RATE = 12_000, 3_000
WRONG = 'with_columns(total=pl.col("total") + 1_000_000)'
#: Another graph with the same rows: the sink's input passes one more operator.
SAME = 'with_columns(total=pl.col("total") + 0)'


class Version(Job):
    """The main job with one more step in front of its sink."""

    def text(self):
        same = "same" in self.environment
        step = SAME if same else WRONG
        plain = replace(self, environment="prepare_state_bytes=0" if same else "")
        text = Job.text(plain).replace(".sink_to(", f".{step}\n       .sink_to(")
        return text.replace("import penstock as ps", "import polars as pl\n\nimport penstock as ps")


def version(scene, *, wrong=False):
    options = {name: getattr(scene.job, name) for name in Job.__dataclass_fields__}
    return Version(**{**options, "environment": "wrong" if wrong else "same"})


class Upgrade:
    """One upgrade, asked for from a thread: the JobManager may be killed while it goes on."""

    def __init__(self, scene, *, wrong=False, **options):
        self.scene, self.error, self.uri, self.views = scene, None, None, []
        self.graph = graph_of(version(scene, wrong=wrong), scene.folder)
        self.options = {"checkpoints": 3, "deadline": "300s", "token": scene.name, **options}
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        with RestClient(self.scene.cluster.rest_url, timeout_seconds=PATIENT_S) as rest:
            handle = JobHandle(rest, self.scene.job_id, self.scene.name)
            try:
                self.uri = handle.upgrade(self.graph, on_poll=self.views.append, **self.options)
            except PenstockError as error:
                self.error = error

    def join(self):
        self.scene.wait(lambda: not self.thread.is_alive(), "the end of the upgrade", seconds=PATIENT_S)
        return self

    def phase(self):
        return (self.scene.ask(lambda rest: rest.newest_upgrade(self.scene.job_id)) or {}).get("phase")

    def tried(self):
        """Checkpoints of the new version, while it is on trial and after."""
        view = self.scene.ask(lambda rest: rest.newest_upgrade(self.scene.job_id)) or {}
        return view.get("checkpoints", {}).get("completed", 0)

    def withheld(self):
        """Rows of the new version's output that the views have shown so far."""
        return max((view["held"]["rows"] for view in self.views), default=0)

    def wait_phase(self, *phases):
        self.scene.wait(lambda: self.phase() in phases or self.error, f"phase {phases}")
        assert self.phase() in phases, self.error

    def judge(self, *, healthy):
        """Say it until that is answered, or known to be done by a JobManager that has died before its answer.

        One that has just begun says that none is on trial until it has read the job's log.
        """

        def said():
            try:
                with RestClient(self.scene.cluster.rest_url) as rest:
                    rest.judge_upgrade(self.scene.job_id, healthy=healthy)
            except UsageError:
                return self.phase() in {"completed", "rolled-back"}
            except PenstockError:
                return False
            return True

        self.scene.wait(said, "a verdict that is taken")


@contextlib.contextmanager
def begun(stage, seed, **options):
    with Scene(stage, Orders(seed, EVENTS), rate=RATE, taskmanagers=TASKMANAGERS, **options) as scene:
        scene.begin()
        scene.wait_checkpoints(2)
        yield scene


def finish_exactly(scene):
    scene.feed.join()
    scene.wait_finished()
    return scene.check_exact()


@pytest.mark.parametrize("from_checkpoint", [False, True])
def test_a_healthy_version_takes_over(stage, shared, from_checkpoint, monkeypatch):
    for name, value in stage.environment.items():
        monkeypatch.setenv(name, value)
    with begun(stage, 41, cluster=shared) as scene:
        upgrade = Upgrade(scene, from_checkpoint=from_checkpoint).join()
        assert upgrade.error is None, scene.diagnosis()
        assert bool(upgrade.uri) is not from_checkpoint
        assert from_checkpoint or open_snapshot(upgrade.uri).manifest.native
        assert [v["name"] for v in scene.rest.job(scene.job_id)["vertices"]]
        assert upgrade.phase() == "completed"
        story = [entry["text"] for entry in scene.story() if entry["kind"] == "upgrade"]
        assert any(re.search("takes over.*output of out withheld", text) for text in story), story
        assert any("healthy: 3 checkpoints" in text for text in story), story
        assert any("the next workers load" in text for text in story), story
        finish_exactly(scene)


def test_wrong_rows_for_five_checkpoints_and_killed_workers_are_taken_back_by_itself(stage, shared):
    """Nobody outside sees a row of it, and the old version leaves none out."""
    with begun(stage, 42, cluster=shared) as scene:
        upgrade = Upgrade(scene, wrong=True, checkpoints=1000, max_restarts=1)
        upgrade.wait_phase("trial")
        scene.wait(lambda: upgrade.tried() >= 3, "three checkpoints of the new version")
        gone = {int(worker["pid"]) for worker in scene.look_at_workers()}
        scene.kill(min(gone))
        scene.wait_replaced(gone)
        scene.wait(lambda: upgrade.tried() >= 5, "five checkpoints of the new version")
        assert upgrade.phase() == "trial", "one restart is allowed"
        scene.wait(upgrade.withheld, "rows that are withheld")
        scene.look_at_workers()
        scene.kill(scene.victim_pid("worker"))
        upgrade.join()
        assert "the old version is running again" in str(upgrade.error), scene.diagnosis()
        assert upgrade.phase() == "rolled-back"
        found = finish_exactly(scene)
        assert found.windows > 100


#: What is killed: the JobManager at a failpoint (which hit), or `trial`: by its pid in the middle of the trial. The
#: verdict that takes a version back is the record that brings the old one.
KILLS = {
    "intent recorded": "jobmanager.after_upgrade_record=kill@1",
    "stopped": "jobmanager.during_stop=kill@1",
    "new version not recorded": "jobmanager.before_upgrade_record=kill@2",
    "new version recorded": "jobmanager.after_upgrade_record=kill@2",
    "trial": "",
    "verdict not recorded": "jobmanager.before_upgrade_record=kill@3",
    "verdict recorded": "jobmanager.after_upgrade_record=kill@3",
}


#: Kills after which a verdict can still be given.
UNHEALTHY = ("trial", "verdict not recorded", "verdict recorded")
#: Of the gate: a kill while the old version is replaced, and one while it is restored; the simulator kills at any step.
GATE = {("new version recorded", "healthy"), ("verdict not recorded", "unhealthy")}
ALL = [*((when, "healthy") for when in KILLS), *((when, "unhealthy") for when in UNHEALTHY)]
CASES = [pytest.param(*case, marks=() if case in GATE else pytest.mark.nightly) for case in ALL]


@pytest.mark.parametrize(("when", "verdict"), CASES)
def test_a_jobmanager_that_dies_in_the_middle(stage, when, verdict):
    """Its successor goes on from what is recorded; the same request, asked again, is the same upgrade."""
    point, _, action = KILLS[when].partition("=")
    healthy = verdict == "healthy"
    with begun(stage, 43, failpoints={point: action} if point else {}) as scene:
        upgrade = Upgrade(scene, wrong=not healthy, checkpoints=3 if healthy else 1000)
        if when == "trial" or not healthy:
            upgrade.wait_phase("trial")
            scene.wait(upgrade.tried, "a checkpoint of the new version")
        if when == "trial":
            scene.kill(scene.cluster.jobmanager.pid)
            scene.wait_restarted()
            upgrade.wait_phase("trial", "completed")
        if not healthy:
            upgrade.judge(healthy=False)
        scene.wait_restarted()
        upgrade.join()
        assert (upgrade.error is None) == healthy, f"{upgrade.error}\n{scene.diagnosis()}"
        upgrade.wait_phase("completed" if healthy else "rolled-back")
        finish_exactly(scene)
