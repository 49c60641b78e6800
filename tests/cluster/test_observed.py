"""What a job tells of itself while it is checkpointed, killed, restored, rescaled and led by another JobManager:
spans at a collector, JSON lines in the logs, the story over both leaders."""

import json
import os
import signal
import subprocess
import sys
import urllib.request

import pytest
from tests.processes.jobmanager.collector import Collector
from tests.support.waiting import wait_until

from penstock.client.handle import JobHandle
from penstock.client.local_cluster import LocalCluster, LocalClusterConfig
from penstock.client.rest_client import RestClient
from penstock.core.errors import PenstockError

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]
LIMIT_S = 120.0
#: What is asked about a job that has ended.
ENDED = (("show",), ("logs",))
TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"

JOB = """
import dataclasses, datetime as dt, logging, sys
import penstock as ps
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink

log = logging.getLogger("shop")

@dataclasses.dataclass
class Priced:
    user_id: int
    ts: dt.datetime
    price: int

def price(row) -> Priced:
    if row.user_id % 50 == 0:
        log.info("priced %d", row.user_id)
        try:
            raise ValueError("password=hush99 was refused")
        except ValueError:
            log.exception("cannot look up")
        print("printed by a function")
    return Priced(row.user_id, row.ts, row.amount)

async def ask(row) -> Priced:
    if row.user_id % 50 == 0:
        log.warning("asked %d", row.user_id)
    return row

env = ps.Environment(parallelism=1, checkpoint_interval="300ms", checkpoint_root="checkpoints")
source = DatagenSource(splits=2, rows_per_second=400, event_rate=100)
orders = env.from_source(source, watermarks=ps.WatermarkStrategy.monotonic(timestamp="ts"), uid="orders")
orders.map(price).uid("price").map_async(ask).uid("ask").sink_to(FileSink("out"), uid="out")
env.execute("prices")
"""


@pytest.fixture
def collector():
    made = Collector()
    yield made
    made.close()


def penstock(folder, environment, *arguments):
    command = [sys.executable, "-m", "penstock.cli.main", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, timeout=LIMIT_S, capture_output=True, text=True)
    assert done.returncode == 0, done
    return done.stdout


def submit(url, graph):
    headers = {"traceparent": f"00-{TRACE}-{CALLER}-01"}
    request = urllib.request.Request(f"{url}/v1/penstock/submit", data=graph, headers=headers, method="POST")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())["jobid"]


def rescale(handle, parallelism):
    """A machine that is too busy may cost a worker its lease: the rescale is given up then, and asked for again."""
    problem = None

    def done():
        nonlocal problem
        try:
            handle.rescale(parallelism)
        except PenstockError as error:
            problem = error
            return False
        return True

    wait_until(done, lambda: f"a rescale: {problem}", seconds=LIMIT_S, step=1)


def taskmanagers(rest):
    try:
        return rest.taskmanagers()
    except PenstockError:
        return []


def rescaled(collector):
    return [span for span in collector.named("Rescale") if not span.failed]


def lines_of(path):
    """The lines of a log, each of which must be a JSON object with what every line has."""
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert all({"time", "level", "logger", "message", "process"} <= line.keys() for line in found), found[:3]
    return found


def test_a_job_is_told_by_spans_logs_and_its_story_over_two_leaders(tmp_path, collector):
    (tmp_path / "job.py").write_text(JOB)
    environment = {
        **os.environ, "PENSTOCK_OTLP_ENDPOINT": collector.url, "PENSTOCK_LOG_FORMAT": "json",
        "PENSTOCK_HOME": str(tmp_path / "home"),
    }  # fmt: skip
    penstock(tmp_path, environment, "run", "job.py", "--write", "job.penstock")
    folder = tmp_path / "cluster"
    config = LocalClusterConfig(
        taskmanagers=1, slots_per_taskmanager=2, directory=folder, environment=environment
    )  # fmt: skip
    with LocalCluster(config) as cluster, RestClient(cluster.rest_url) as rest:
        job = submit(cluster.rest_url, (tmp_path / "job.penstock").read_bytes())
        cuts = lambda: rest.checkpoints(job)["counts"]["completed"]
        wait_until(lambda: cuts() >= 2, lambda: rest.story(job), seconds=LIMIT_S)
        first_worker = rest.workers(job)[0]
        os.kill(int(first_worker["pid"]), signal.SIGKILL)
        wait_until(lambda: rest.summary(job)["restarts"] >= 1 and cuts() >= 4, lambda: rest.story(job), seconds=LIMIT_S)
        rescale(JobHandle(rest, job, "prices"), 2)
        wait_until(lambda: rescaled(collector), lambda: collector.spans[-5:], seconds=LIMIT_S)
        shown = rest.log(rest.workers(job)[0]["id"])
        wait_until(lambda: "shop [map(price) (" in rest.log(rest.workers(job)[0]["id"]), lambda: shown, seconds=LIMIT_S)
        # its worst death: nothing can be said any more
        cluster.jobmanager.process.kill()

        def led_again():
            try:
                return rest.leader()["generation"] == 2 and cuts() >= 2
            except Exception:
                return False

        wait_until(led_again, "the next JobManager", seconds=LIMIT_S)
        told = penstock(tmp_path, environment, "story", job, "--cluster", cluster.rest_url)
        rest.cancel(job)
        wait_until(lambda: rest.job(job)["state"] == "CANCELED", lambda: rest.story(job), seconds=LIMIT_S)
        rest.job_after(job, 60_000)
        look = lambda: [penstock(tmp_path, environment, *ask, job, "--cluster", cluster.rest_url) for ask in ENDED]
        ended = look()
        cluster.jobmanager.process.kill()
        wait_until(lambda: taskmanagers(rest), "the third JobManager", seconds=LIMIT_S)
        assert look() == ended, "the next JobManager shows all of the ended job"
        assert "priced" in ended[1]

    penstock(tmp_path, environment, "state", "fsck", "checkpoints/prices")
    check_spans(collector)
    check_story(told)
    check_logs(folder)


def check_spans(collector):
    (whole,) = collector.named("Submit")
    assert (whole.trace, whole.parent) == (TRACE, CALLER), "of the span that submitted it"
    assert [span.name for span in collector.below(whole)] == ["JobInitialization"]
    cut = next(span for span in collector.named("Checkpoint") if span.attributes["checkpointStatus"] == "COMPLETED")
    below = collector.below(cut)
    assert {span.name for span in below} == {"Checkpoint_Subtask", "Commit"}
    steps = {step.name for span in below for step in collector.below(span)}
    assert steps == {"Alignment", "Synchronous", "Upload"}
    assert all(cut.start <= span.start <= span.end for span in below)
    assert cut.attributes["job.name"] == "prices"
    restored = [s for s in collector.named("JobInitialization") if s.attributes.get("restarts") == 1]
    assert restored
    assert restored[0].attributes["checkpointId"] >= 1
    assert {span.name for span in collector.below(restored[0])} >= {"ReadLog", "StartWorkers", "RestoreState"}
    (done,) = rescaled(collector)
    assert {span.name for span in collector.below(done)} == {"Checkpoint", "JobInitialization"}
    leaders = {span.attributes["generation"] for span in collector.named("JobInitialization")}
    assert len(leaders) == 1, "the second one has adopted the workers"


def check_story(told):
    first, second = told.split("--- leader of generation ")[1:]
    for decided in ("failure", "restart", "rescale", "running", "checkpoint"):
        assert f" {decided} " in first, told
    assert " has adopted 2 running workers" in second
    assert " deploy " not in second
    assert " rescale " not in second


def check_logs(folder):
    manager = lines_of(folder / "jobmanager.log")
    decided = [line for line in manager if line["logger"] == "penstock.jobs"]
    assert {line["job_name"] for line in decided} == {"prices"}
    assert any("SIGKILL" in line["message"] for line in decided)
    assert any(line["logger"] == "penstock.taskmanager" for line in lines_of(folder / "taskmanager-0.log"))
    said = [line for path in (folder / "tm-0" / "logs").glob("*.log") for line in lines_of(path)]
    by_operator = {(line["logger"], line.get("operator")) for line in said if line["logger"] == "shop"}
    assert by_operator == {("shop", "map(price)"), ("shop", "map_async(ask)")}
    assert {line["subtask"] for line in said if line["logger"] == "shop"} == {0, 1}, "both, once it was rescaled"
    assert len({line["attempt"] for line in said if line["logger"] == "shop"}) > 1
    failed = [line for line in said if "exception" in line]
    assert failed
    assert "ValueError" in failed[0]["exception"]
    assert (failed[0]["job_name"], failed[0]["level"]) == ("prices", "ERROR")
    assert "printed by a function" in {line["message"] for line in said if line["logger"] == "stdout"}
    assert "hush99" not in json.dumps(said)
