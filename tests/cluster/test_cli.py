"""The command line on a real cluster: every command once, and a job that goes on after cancel and after kill -9."""

import json
import signal

import pytest
from tests.cluster import proc_tree
from tests.cluster.job_file import Job
from tests.cluster.orders import Feed, Orders, create_topics, read_windows, verdict
from tests.cluster.stage import cli, start_cli
from tests.support.interrupts import interruptible
from tests.support.waiting import wait_until

from penstock.client.rest_client import RestClient

pytestmark = [pytest.mark.servers, pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]


#: Of a process that hangs.
LIMIT_S = 300


class Console:
    """Runs `penstock` commands against one local cluster of its own."""

    def __init__(self, stage):
        self.folder = stage.folder
        self.environment = {**stage.environment, "PENSTOCK_HOME": str(stage.folder / "home")}

    def __call__(self, *arguments, code=0):
        said = cli(*arguments, cwd=self.folder, environment=self.environment)
        assert said.code == code, said
        return said


@pytest.fixture
def console(stage):
    found = Console(stage)
    yield found
    record = stage.folder / "home" / "cluster.json"
    if record.exists():  # a test that failed: nothing may stay behind
        pid = json.loads(record.read_text())["pid"]
        proc_tree.signal_all([pid, *proc_tree.descendants(pid)], signal.SIGKILL)


@pytest.fixture
def work(stage):
    """A bounded job and the feed of its topic."""
    orders = Orders(31, 12_000)
    source, sink, name = stage.fresh("orders"), stage.fresh("totals"), stage.fresh("job")
    create_topics(stage.bootstrap, **{source: orders.partitions, sink: 2})
    job = Job(name, stage.bootstrap, source, sink, stage.root(name), stops=orders.stops(source))
    feed = Feed(stage.bootstrap, source, orders, rate=2_000)
    job.write(stage.folder)
    yield job, feed
    feed.end()


def check(stage, job, feed):
    found = verdict(feed.orders, read_windows(stage.bootstrap, job.sink))
    assert found.exact, found


def wait_completed(url, job_id, count):
    with RestClient(url) as rest:
        done = lambda: rest.checkpoints(job_id)["counts"]["completed"]
        wait_until(lambda: done() >= count, lambda: f"{count} checkpoints: {rest.story(job_id)[-9:]}", step=0.1)


def test_every_command_once(stage, console, work):
    job, feed = work
    path = stage.folder / f"{job.name}.py"
    started = console("cluster", "start", "--taskmanagers", 2, "--slots", 1, "--rest-port", 0, "--json").value
    console("cluster", "start", code=2)
    overview = console("cluster", "status", "--json").value
    assert (overview["taskmanagers"], overview["slots-total"]) == (2, 2)
    assert console("list", "--json").value == []

    feed.start()
    run = ("run", path, "--cluster", started["rest"], "--json")
    job_id = console(*run, "--detached").value["jobid"]
    (listed,) = console("list", "--json").value
    assert (listed["jid"], listed["name"]) == (job_id, job.name)
    assert job.name in console("list").out
    wait_completed(started["rest"], job_id, 2)
    shown = console("show", job.name, "--json").value
    assert shown["job"]["state"] == "RUNNING"
    assert shown["checkpoints"]["counts"]["completed"] >= 2
    assert job.name in console("show", job_id[:12]).out
    assert console("story", job_id, "--json").value
    wait_until(lambda: console("explain", job_id, "--json").value["cpu-ms"] > 0, "a time budget")
    assert "(output)" in console("explain", job.name).out
    assert console("savepoint", job_id, "--json").value["savepoint"]
    console("show", "no-such-job", code=3)

    console("cancel", job_id)
    wait_until(lambda: console("show", job_id, "--json").value["job"]["state"] == "CANCELED", "the end")
    again = console(*run, "--detached").value["jobid"]
    wait_completed(started["rest"], again, 1)
    assert console("stop", again, "--json").value["savepoint"]
    feed.go_on()
    last = console(*run)
    assert last.value["state"] == "FINISHED"
    feed.join()
    check(stage, job, feed)
    console("cluster", "stop")
    console("cluster", "stop", code=2)
    console("list", code=2)


def test_run_goes_on_after_kill_9_of_everything(stage, console, work):
    job, feed = work
    path = stage.folder / f"{job.name}.py"
    feed.start()
    process = start_cli("run", path, cwd=stage.folder, environment=console.environment)
    try:
        wait_until(lambda: read_windows(stage.bootstrap, job.sink), "output of the first run", step=0.5)
        tree = [process.pid, *proc_tree.descendants(process.pid)]
        assert len(tree) >= 6, "a JobManager, two TaskManagers, their workers"
    finally:
        proc_tree.signal_all([process.pid, *proc_tree.descendants(process.pid)], signal.SIGKILL)
        process.communicate(timeout=LIMIT_S)
    wait_until(lambda: not any(proc_tree.alive(pid) for pid in tree), "the killed processes to go")
    feed.go_on()
    said = console("run", path, "--json")
    assert said.value["state"] == "FINISHED"
    feed.join()
    check(stage, job, feed)


def test_run_ended_by_ctrl_c_can_be_resumed(stage, console, work):
    job, feed = work
    path = stage.folder / f"{job.name}.py"
    feed.start()
    with interruptible():
        process = start_cli("run", path, cwd=stage.folder, environment=console.environment)
    try:
        wait_until(lambda: read_windows(stage.bootstrap, job.sink), "output of the first run", step=0.5)
        tree = proc_tree.descendants(process.pid)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=LIMIT_S)
        assert process.returncode == 130
        assert not [pid for pid in tree if proc_tree.alive(pid)]
    finally:
        process.kill()
        process.wait()
    feed.go_on()
    said = console("run", path, "--json", "--parallelism", 1)
    assert said.value["state"] == "FINISHED"
    feed.join()
    check(stage, job, feed)
