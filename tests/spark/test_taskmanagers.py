"""TaskManagers on Spark's executors: a job's output is exact when an executor is killed, and nothing stays behind."""

import json
import os
import re
import signal
import subprocess
import sys

import polars as pl
import pytest
from tests.cluster import proc_tree
from tests.cluster.ports import listening
from tests.spark.executors import executors, is_taskmanager
from tests.spark.standalone import HOME, Standalone
from tests.support.waiting import wait_until

from penstock.client.rest_client import RestClient

#: Two executors' JVMs beside the driver's, and again after a kill: minutes where the cores are busy.
pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(1800)]

MASTER = "local-cluster[2,1,1024]"
START_S = 900
ROWS = 9000
#: Rows in a second of event time.
EVENTS_PER_S = 100
JOB = """
import penstock as ps
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink

env = ps.Environment(parallelism={parallelism}, checkpoint_interval="500ms", checkpoint_root={root!r})
source = DatagenSource(splits=2, rows={rows}, rows_per_second={rate}, event_rate={events})
orders = env.from_source(source, watermarks=ps.WatermarkStrategy.monotonic(timestamp="ts"), uid="orders")
counted = orders.key_by("user_id").window(ps.Tumbling("5s")).aggregate(n=ps.count()).uid("counts")
counted.sink_to(FileSink({out!r}), uid="out")
env.execute({name!r})
"""


#: A job that starts with the slots that there are, and soon takes more.
ADAPTIVE = (
    *("--set", "adaptive_scheduler.enabled=true", "--set", "adaptive_scheduler.scaling-interval=1s"),
    *("--set", "adaptive_scheduler.resource-stabilization-timeout=1s"),
)


class Console:
    def __init__(self, folder):
        self.folder = folder
        self.environment = {**os.environ, "PENSTOCK_HOME": str(folder / "home")}

    def command(self, *arguments):
        return [sys.executable, "-m", "penstock.cli.main", *map(str, arguments)]

    def __call__(self, *arguments, code=0, seconds=START_S):
        done = subprocess.run(
            self.command(*arguments), cwd=self.folder, env=self.environment,
            capture_output=True, text=True, timeout=seconds,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def told(self, run):
        """Return the output of a job's command and the cluster's log, for a wait that fails."""
        log = (self.folder / "home" / "cluster.log").read_text()[-2000:]
        return f"the job's command: {run.poll()}\n{log}"

    def taskmanagers(self):
        """Their ids, and the text that counts them and their slots."""
        counts, *lines = self("cluster", "status").splitlines()
        return {line.split()[0] for line in lines if not line.strip().startswith("memory:")}, counts.partition("; ")[2]

    def job(self, name, **values):
        given = {"name": name, "rows": ROWS, "rate": 300, "events": EVENTS_PER_S, "parallelism": 4, **values}
        given |= {"root": str(self.folder / "checkpoints"), "out": str(self.folder / name)}
        path = self.folder / f"{name}.py"
        path.write_text(JOB.format(**given))
        return path

    def rows(self, name):
        """The output of a job in an order of its own."""
        parts = [p for p in (self.folder / name).rglob("*") if p.is_file() and not p.name.startswith((".", "_"))]
        found = pl.concat([pl.read_parquet(part) for part in parts])
        return found.sort(found.columns)


@pytest.fixture
def console(tmp_path):
    found = Console(tmp_path)
    yield found
    record = tmp_path / "home" / "cluster.json"
    if record.exists():  # a test that failed: nothing may stay behind
        pid = json.loads(record.read_text())["pid"]
        proc_tree.signal_all([pid, *proc_tree.descendants(pid)], signal.SIGKILL)


def test_an_executor_is_killed_in_the_middle(console, tmp_path):
    console("run", console.job("expected", rows=ROWS // 2, rate=100_000))
    options = ("--provider", "spark", "--master", MASTER, "--slots", 2, "--rest-port", 0)
    console("cluster", "start", *options)
    pid = json.loads((tmp_path / "home" / "cluster.json").read_text())["pid"]
    everything = {pid, *proc_tree.descendants(pid)}
    assert {address for address, _ in listening(everything)} <= {"127.0.0.1"}
    assert "2 TaskManagers, 4 of 4 slots free" in console("cluster", "status")
    assert len(executors(pid)) == 2
    before, _ = console.taskmanagers()

    url = json.loads((tmp_path / "home" / "cluster.json").read_text())["rest"]
    command = console.command("run", console.job("counted", rows=ROWS // 2), "--cluster", url)
    with subprocess.Popen(command, cwd=tmp_path, env=console.environment) as run:
        manifests = tmp_path / "checkpoints"
        there = lambda: len(list(manifests.glob("counted/manifests/*")))
        wait_until(lambda: there() > 3, lambda: f"checkpoints, not {there()}\n{console.told(run)}", seconds=120)
        everything |= set(proc_tree.descendants(pid))
        os.kill(executors(pid)[0], signal.SIGKILL)
        assert run.wait(START_S) == 0
    assert console.rows("counted").equals(console.rows("expected"))
    assert "lost" in console("story", "counted")
    all_free = lambda: console.taskmanagers()[1] == "2 TaskManagers, 4 of 4 slots free"
    wait_until(all_free, "two TaskManagers without a worker", step=1.0)
    assert len(before & console.taskmanagers()[0]) == 1, "the other executor's TaskManager lives on"
    everything |= set(proc_tree.descendants(pid))
    console("cluster", "stop")
    left = lambda: list(filter(proc_tree.alive, everything))
    wait_until(lambda: not left(), lambda: f"the end of {left()}", step=0.1)


@pytest.mark.nightly
@pytest.mark.parametrize("scheduler", [(), ADAPTIVE], ids=["waits", "adaptive"])
def test_taskmanagers_follow_what_jobs_need(console, tmp_path, scheduler):
    """Spark's executors follow them: it has no more of them than TaskManagers, some seconds later."""
    console("run", console.job("expected", rate=100_000))
    follow = ("spark.dynamicAllocation.enabled=true", "spark.dynamicAllocation.executorIdleTimeout=3s")
    settings = [part for setting in follow for part in ("--spark-conf", setting)]
    bounds = ("--taskmanagers", "1..2", "--taskmanager-timeout", "5s", "--slots", 2)
    console("cluster", "start", "--provider", "spark", "--master", MASTER, "--rest-port", 0, *bounds, *settings)
    record = json.loads((tmp_path / "home" / "cluster.json").read_text())
    pid = record["pid"]
    _, counts = console.taskmanagers()
    assert counts == "1 TaskManager, 2 of 2 slots free"
    assert len(executors(pid)) == 1

    command = console.command("run", console.job("counted"), "--cluster", record["rest"], *scheduler)
    with subprocess.Popen(command, cwd=tmp_path, env=console.environment) as run:
        wait_until(
            lambda: console.taskmanagers()[1] == "2 TaskManagers, 0 of 4 slots free",
            "a second one",
            seconds=240,
            step=1.0,
        )
        assert len(executors(pid)) == 2
        assert run.wait(START_S) == 0
    assert console.rows("counted").equals(console.rows("expected"))
    wait_until(lambda: console.taskmanagers()[1] == "1 TaskManager, 2 of 2 slots free", "its release", step=1.0)
    wait_until(lambda: len(executors(pid)) == 1, "the end of its executor", step=1.0)
    assert "lost" not in console("story", "counted")

    (left,), _ = console.taskmanagers()
    console("run", console.job("again", parallelism=2, rate=100_000), "--cluster", record["rest"])
    assert console.rows("again").equals(console.rows("expected"))
    assert console.taskmanagers()[0] == {left}, "no other was needed"
    log = (tmp_path / "home" / "cluster.log").read_text()
    assert log.count(" is released: no job has used it for 5 s") == 1
    assert "ended:" not in log
    everything = {pid, *proc_tree.descendants(pid)}
    console("cluster", "stop")
    left = lambda: list(filter(proc_tree.alive, everything))
    wait_until(lambda: not left(), lambda: f"the end of {left()}", step=0.1)


GOLDEN = """
from collections.abc import Iterator

import penstock as ps
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink


class Second(ps.Schema):
    user_id: int
    second: int


class Seconds(ps.KeyedProcessFunction):
    # the seconds in which a user has ordered: in which order rows and timers come makes no difference
    last: ps.ValueState[int] = ps.value_state()

    def process(self, order, ctx: ps.ProcessContext) -> Iterator[Second]:
        second = ctx.timestamp // 1_000_000
        if second != self.last.value():
            self.last.update(second)
            ctx.timers.event((second + 1) * 1_000_000)
        yield from ()

    def on_timer(self, timestamp: int, ctx: ps.ProcessContext) -> Iterator[Second]:
        yield Second(user_id=ctx.key, second=timestamp // 1_000_000)


env = ps.Environment(parallelism=2, checkpoint_interval="1s", checkpoint_root={root!r})
monotonic = ps.WatermarkStrategy.monotonic(timestamp="ts")
orders, others = (
    env.from_source(DatagenSource(splits=1, rows=20_000, users=50, event_rate=100, seed=s), watermarks=monotonic,
                    uid=f"orders-{{s}}")
    for s in (1, 2)
)
by_user = orders.key_by("user_id")
total = {{"n": ps.count(), "total": ps.sum("amount")}}
streams = {{
    "windows": by_user.window(ps.Tumbling("5s")).aggregate(**total).uid("windows"),
    "sessions": by_user.window(ps.Session("700ms")).aggregate(**total).uid("sessions"),
    "join": by_user.interval_join(others.key_by("user_id"), "-100ms", "100ms").uid("join"),
    "timers": by_user.process(Seconds()).uid("timers"),
    "newest": by_user.deduplicate(keep="last", by="ts").uid("newest"),
}}
for name, stream in streams.items():
    stream.sink_to(FileSink({out!r} + "/" + name), uid=f"out-{{name}}")
env.execute({name!r})
"""


@pytest.mark.nightly
def test_a_bounded_job_on_spark_gives_what_the_embedded_engine_gives(console):
    """Windows, sessions, an interval join, timers of a process function, deduplication."""
    for name, options in (("embedded", ()), ("on-spark", ("--engine", "spark", "--master", MASTER))):
        place = console.folder / f"{name}.py"
        roots = {"root": str(console.folder / f"checkpoints-{name}"), "out": str(console.folder / name)}
        place.write_text(GOLDEN.format(name=name, **roots))
        assert "FINISHED" in console("run", place, *options)
    for stream in ("windows", "sessions", "join", "timers", "newest"):
        expected = console.rows(f"embedded/{stream}")
        assert expected.height > 100
        assert console.rows(f"on-spark/{stream}").equals(expected), stream


def test_an_endless_job_leaves_a_decommissioned_executor_and_outlives_its_driver(console, tmp_path):
    """SIGPWR is what Kubernetes and a decommissioned Worker send; the same command resumes after SIGKILL."""
    job = console.job("endless", rows=None, parallelism=2, rate=200)
    options = ("--engine", "spark", "--master", "local-cluster[3,1,1024]", "--taskmanagers", 2, "--slots", 1)
    command = console.command("run", job, *options)
    manifests = lambda: len(list((tmp_path / "checkpoints").glob("endless/manifests/*")))
    with Driver(command, console, "first") as first:
        first.wait(lambda: manifests() > 3, "checkpoints")
        used = [pid for pid in executors(first.pid) if any(map(is_taskmanager, proc_tree.descendants(pid)))]
        assert len(used) == 2
        os.kill(used[0], signal.SIGPWR)
        first.wait(lambda: not proc_tree.alive(used[0]), "the end of its executor")
        with RestClient(first.url) as rest:
            first.wait(lambda: rest.summary("endless")["state"] == "RUNNING", "the job elsewhere")
            assert rest.summary("endless")["restarts"] == 0, "it left before the executor ended"
        assert proc_tree.alive(used[1])
        assert "away from spark-" in console("story", "endless", "--cluster", first.url)
        everything = {first.pid, *proc_tree.descendants(first.pid)}
        before = manifests()
        first.kill()
    with Driver(command, console, "second") as second:
        second.wait(lambda: manifests() > before + 3, "checkpoints of the second run")
        assert "endless resumes from checkpoint" in second.said()
        console("stop", "endless", "--cluster", second.url)
        assert second.wait_end() == 0
    left = lambda: list(filter(proc_tree.alive, everything))
    wait_until(lambda: not left(), lambda: f"the end of {left()}", step=0.1)
    found = console.rows("endless")
    seconds = (found["window_start"].max() - found["window_start"].min()).total_seconds()
    console("run", console.job("expected", rows=int(seconds + 10) * EVENTS_PER_S, parallelism=2, rate=100_000))
    expected = console.rows("expected")
    whole = pl.col("window_start") < found["window_start"].max()
    assert found.filter(whole).height > 100
    assert found.filter(whole).equals(expected.filter(whole))


@pytest.mark.nightly
def test_a_driver_that_spark_submit_starts_runs_its_job_on_a_standalone_cluster(console, tmp_path):
    """The JVM is not penstock's: in the cluster mode of YARN and Kubernetes it is the application's own."""
    console("run", console.job("expected", parallelism=2, rate=100_000))
    driver, job = tmp_path / "driver.py", console.job("submitted", parallelism=2, rate=100_000)
    driver.write_text("from penstock.cli.main import app; app()")
    environment = {**console.environment, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    with Standalone(tmp_path, workers=1, cores=2, memory="2g") as spark:
        master = ("--master", spark.url)
        command = [
            f"{HOME}/bin/spark-submit", *master, "--conf", "spark.driver.memory=512m", str(driver),
            "run", str(job), "--engine", "spark", *master, "--spark-conf", "spark.executor.memory=1g",
        ]  # fmt: skip
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=START_S, check=False
        )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "submitted" in done.stdout
    assert "FINISHED" in done.stdout
    assert console.rows("submitted").equals(console.rows("expected"))


class Driver:
    """A `penstock run` on Spark in the background; a context manager that leaves no process."""

    def __init__(self, command, console, name):
        self._log = console.folder / f"{name}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=console.folder, env=console.environment, stdout=log, stderr=log
            )
        self.pid = self._process.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        proc_tree.signal_all([*proc_tree.descendants(self.pid), self.pid], signal.SIGKILL)
        self._process.wait()

    @property
    def url(self):
        return re.search(r"the JobManager is at (\S+)", self.said())[1]

    def said(self):
        return self._log.read_text()

    def kill(self):
        """Kill this process alone."""
        self._process.kill()
        self._process.wait()

    def wait(self, condition, what):
        def done():
            assert self._process.poll() is None, self.said()[-2000:]
            return condition()

        wait_until(done, lambda: f"{what}\n{self.said()[-2000:]}", seconds=START_S / 3, step=0.1)

    def wait_end(self):
        return self._process.wait(START_S)
