"""Failures reach the user at once: the error, the line in the job file, and the next attempt."""

import itertools
import os
import re
import signal
import subprocess
import sys

import pytest
from tests.cluster import proc_tree
from tests.support.interrupts import interruptible
from tests.support.jobs import end_jobs
from tests.support.waiting import wait_until

from penstock.client.local_cluster import LocalCluster, LocalClusterConfig
from penstock.core.errors import PenstockError

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

FUNCTION = """
from collections.abc import Iterator

import penstock as ps


class Paid(ps.Schema):
    user: str
    amount: int


class Total(ps.Schema):
    user: str
    total: int


class Totals(ps.KeyedProcessFunction):
    total: ps.ValueState[int] = ps.value_state()

    def process(self, row: Paid, ctx) -> Iterator[Total]:
        self.total.update((self.total.value() or 0) + row.amount)
        yield Total(user=row.user, total=self.total.value())
"""
TEST = """
from pathlib import Path

import penstock as ps
from fraud import Paid, Totals
from penstock_connectors.files import FileSource

{more}

def test_totals(tmp_path):
    (tmp_path / "paid.jsonl").write_text('{{"user": "a", "amount": 1}}\\n{{"user": "a", "amount": 2}}\\n')
    rows = (
        ps.Environment(1)
        .from_source(FileSource(str(tmp_path / "paid.jsonl"), schema=Paid), uid="paid")
        .key_by("user")
        .process(Totals())
        .uid("totals")
        .execute_and_collect()
    )
    assert sorted(rows["total"]) == [1, 3]
"""
#: The module cannot be found by any other process.
HIDDEN = 'import sys\n\nsys.path[:] = [place for place in sys.path if not (Path(place) / "fraud.py").exists()]\n'
JOB = """
import penstock as ps
from penstock_connectors.files import FileSink, FileSource


class Paid(ps.Schema):
    user: str
    amount: int


env = ps.Environment(1, checkpoint_root={root!r})
(env.from_source(FileSource({paid!r}, schema=Paid), uid="paid")
    .map({function}, returns=Paid)
    .sink_to(FileSink({out!r}), uid="out"))
env.execute("raises")
"""


def said(folder, *command):
    """Return the exit code and all that a command has printed."""
    done = subprocess.run([sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def a_test(tmp_path):
    """Run a user's own test of a process function with pytest; `more` follows its imports, `function` is its module."""

    def run(more="", function=FUNCTION):
        (tmp_path / "fraud.py").write_text(function)
        (tmp_path / "test_fraud.py").write_text(TEST.format(more=more))
        return said(tmp_path, "pytest", "-q", "-p", "no:cacheprovider", "test_fraud.py")

    return run


def test_a_test_of_a_process_function_whose_module_lies_beside_it_passes(a_test):
    code, text = a_test()
    assert code == 0, text


def test_a_test_whose_workers_cannot_import_the_function_fails_with_the_import_error(a_test):
    code, text = a_test(HIDDEN)
    assert code == 1, text
    assert "FunctionLoadError: process 'totals': the function cannot be loaded: ModuleNotFoundError" in text
    assert re.search(
        r"No module named 'fraud'; operator 'totals' at test_fraud.py:\d+ \(a package: .*put it beside", text
    )


def test_a_test_whose_function_raises_fails_with_the_line_and_the_row(a_test):
    code, text = a_test(function=FUNCTION.replace("+ row.amount", "+ 4 // (2 - row.amount)"))
    assert code == 1, text
    assert re.search(
        r'fraud\.py", line \d+, in process\n.*\nE .*ZeroDivisionError: integer division or modulo by zero\n'
        r"E +row 2 of a batch of 2: user='a', amount=2",
        re.sub(r"\nE +[~^]+(?=\n)", "", text),
    ), text


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("lambda row: row._asdict()", "AttributeError: 'Paid' object has no attribute '_asdict'"),
        ("lambda row: Paid(user=row.user, amount='abc')", "Paid: amount: Input should be a valid integer"),
    ],
)
def test_a_function_that_raises_ends_the_run_with_its_line(tmp_path, function, words):
    (tmp_path / "paid.jsonl").write_text('{"user": "a", "amount": 1}\n')
    root, paid, out = (str(tmp_path / name) for name in ("root", "paid.jsonl", "out"))
    (tmp_path / "job.py").write_text(JOB.format(root=root, paid=paid, out=out, function=function))
    code, text = said(tmp_path, "penstock.cli.main", "run", "job.py")
    assert code == 3, text
    assert words in " ".join(text.split())
    assert "job.py:13" in text


def test_a_run_ends_with_what_it_has_read_and_written_and_says_when_nothing_is_left_to_do(tmp_path):
    (tmp_path / "paid.jsonl").write_text('{"user": "a", "amount": 1}\n{"user": \n{"user": "b", "amount": 2}\n')
    root, paid, out = (str(tmp_path / name) for name in ("root", "paid.jsonl", "out"))
    text = JOB.format(root=root, paid=paid, out=out, function="lambda row: row")
    (tmp_path / "job.py").write_text(text.replace("schema=Paid)", "schema=Paid, on_bad_record='skip')"))
    code, text = said(tmp_path, "penstock.cli.main", "run", "job.py")
    assert code == 0, text
    for line in ("read 2 rows from paid", "bad records in source paid: 1", "wrote 2 rows to out"):
        assert line in text
    code, text = said(tmp_path, "penstock.cli.main", "run", "job.py")
    assert code == 0, text
    assert re.search(r"nothing was left to do since checkpoint \d+, taken [^;]* UTC; --fresh starts over", text), text
    code, text = said(tmp_path, "penstock.cli.main", "run", "job.py", "--fresh", "--json")
    assert '"rows-read":{"paid":2}' in text


ENDLESS = """
import time
from pathlib import Path

import penstock as ps
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink


class Order(ps.Schema):
    user_id: int
    amount: int


def checked(row) -> Order:
    if Path({bad!r}).exists():
        raise ValueError("no such user")
    while Path({hang!r}).exists():
        time.sleep(0.05)
    return Order(user_id=row.user_id, amount=row.amount)


soon = ps.RestartStrategy(max_delay_ms=100)
env = ps.Environment(1, checkpoint_interval="100ms", checkpoint_root={root!r}, restart=soon)
env.from_source(DatagenSource(splits=1, users=3, rows_per_second=50), uid="orders").map(checked).sink_to(
    FileSink({out!r}), uid="out"
)
env.execute("endless")
"""


def endless_job(folder):
    """Return the job file of an endless job whose files are in `folder`."""
    return ENDLESS.format(**{name: str(folder / name) for name in ("bad", "hang", "root", "out")})


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A cluster of two slots that says that it will have no more."""
    folder = tmp_path_factory.mktemp("cluster")
    config = LocalClusterConfig(taskmanagers=1, slots_per_taskmanager=2, most_slots=2, directory=folder)
    with LocalCluster(config) as running:
        yield running


@pytest.fixture
def endless(tmp_path, cluster):
    """A job on the cluster that runs until `bad` exists, and what `penstock run` has printed of it so far.

    Its function does not return while `hang` exists.
    """
    bad, printed = tmp_path / "bad", tmp_path / "printed"
    text = endless_job(tmp_path)
    (tmp_path / "job.py").write_text(text)
    command = [sys.executable, "-m", "penstock.cli.main", "run", "job.py", "--cluster", cluster.rest_url]
    with printed.open("w") as out, subprocess.Popen(command, cwd=tmp_path, stdout=out, stderr=out) as run:
        try:
            yield bad, lambda: " ".join(printed.read_text().split())
        finally:
            end_jobs(cluster.client())
            run.wait()


def penstock(cluster, *command):
    """Return what a command prints."""
    environment = {**os.environ, "COLUMNS": "300"}
    whole = [sys.executable, "-m", "penstock.cli.main", *command, "--cluster", cluster.rest_url]
    return subprocess.run(whole, env=environment, capture_output=True, text=True, check=True).stdout


def test_each_failure_of_a_running_job_is_printed_once_and_shown_whole(cluster, endless):
    bad, printed = endless
    client = cluster.client()
    checkpoints = lambda: [job for job in client.jobs() if client.summary(job["jid"])["checkpoints-completed"] > 2]
    (job,) = wait_until(checkpoints, printed, step=0.1)
    bad.touch()
    told = wait_until(
        lambda: re.search(r"endless failed[^:]*: (.*?) \(restart \d+, (.*?);", printed()), printed, step=0.1
    )
    assert re.search(r"UserFunctionError: map 'map-\d': ValueError: no such user at .*job.py:17 in checked", told[1])
    # a job that has not been restored yet names no checkpoint
    assert re.fullmatch(
        r"next attempt in [\d.]+ s"
        r"|(next attempt in [\d.]+ s|it is restarting|it runs again), from (its newest checkpoint|checkpoint \d+)",
        told[2],
    )
    row = (
        r'job.py", line 17, in checked\s+raise ValueError\("no such user"\) ValueError: no such user row \d+ of a batch'
    )
    wait_until(lambda: re.search(row, printed()), printed, step=0.1)
    shown = penstock(cluster, "show", "endless")
    assert "last failure (at " in shown
    assert re.search(f"{row} of \\d+: user_id=\\d, amount=\\d+, ts=", " ".join(shown.split())), shown
    assert "/penstock/" not in shown
    assert "/penstock/" in penstock(cluster, "show", "endless", "--all")
    wait_until(lambda: client.job(job["jid"])["state"] == "FAILED", printed, step=0.1)
    assert client.summary(job["jid"])["restarts"] == 10
    wait_until(lambda: "job endless failed: UserFunctionError" in printed(), printed, step=0.1)
    log = penstock(cluster, "logs", "endless")
    assert "exited; the job is FAILED" in log
    assert "no such user" in log


def test_a_function_that_does_not_return_is_named_with_its_line_until_it_does(cluster, endless):
    bad, printed = endless
    client = cluster.client()
    rate = lambda job: client.summary(job["jid"])["rows-read-per-second"].get("orders")
    reading = lambda: [job["jid"] for job in client.jobs() if rate(job)]
    (job_id,) = wait_until(reading, printed, step=0.1)
    bad.with_name("hang").touch()
    in_call = r"operator 'map-\d' \(0\) has been in one call for (\d+) s, at job\.py:1[89] in checked"
    wait_until(lambda: len({*re.findall(rf"\(0/s\).*?{in_call}", printed())}) > 1, printed, step=0.1)
    for command in ("show", "explain", "story"):
        assert re.search(in_call, penstock(cluster, command, "endless")), command
    assert client.summary(job_id)["rows-read-per-second"] == {"orders": 0}
    assert client.health(job_id)["findings"][0]["kind"] == "function-in-call"
    with pytest.raises(PenstockError, match=r"has been in one call since .*, at job\.py:1[89] in checked"):
        client.watermark(job_id)
    bad.with_name("hang").unlink()
    wait_until(lambda: re.search(r"endless: slow call ended: operator 'map-\d' \(0\)", printed()), printed, step=0.1)
    assert client.summary(job_id)["slow-calls"] == []
    assert re.search(r"slow call ended after \d+ s: operator 'map-\d' \(0\), at", penstock(cluster, "story", "endless"))


def test_a_root_that_only_the_jobmanager_can_write_fails_the_job_with_the_name_of_the_taskmanager(cluster, tmp_path):
    folder = tmp_path / "root" / "endless"
    folder.mkdir(parents=True)
    # workers write below it, which leads nowhere; a folder without permission would not stop root
    (folder / "data").symlink_to("/nowhere/at/all")
    (tmp_path / "job.py").write_text(endless_job(tmp_path))
    run = ("penstock.cli.main", "run", "job.py", "--cluster", cluster.rest_url, "--set", "restart.kind=none")
    code, text = said(tmp_path, *run)
    assert code == 1, text
    text = " ".join(text.split())
    assert re.search(r"StorageError: TaskManager tm-0 \(host .*\) cannot write the job's checkpoints in", text), text
    assert f"file://{folder}" in text
    assert "give that user write access" in text


def test_a_crash_in_native_code_is_told_with_the_line_that_called_it(cluster, tmp_path):
    text = endless_job(tmp_path).replace('raise ValueError("no such user")', "ctypes.string_at(0)")
    (tmp_path / "job.py").write_text(f"import ctypes\n{text}")
    (tmp_path / "bad").touch()
    run = ("penstock.cli.main", "run", "job.py", "--cluster", cluster.rest_url, "--set", "restart.kind=none")
    code, text = said(tmp_path, *run)
    assert code == 1, text
    crash = "it was killed by SIGSEGV at job.py:18 in checked, in native code that this line calls: update that library"
    assert f"{crash}, or replace it (`penstock logs endless --cluster {cluster.rest_url}`" in " ".join(text.split())
    assert "line 18 in checked" in penstock(cluster, "logs", "endless")


def test_a_function_that_ends_its_process_fails_the_job_with_its_line(cluster, tmp_path):
    text = endless_job(tmp_path).replace('raise ValueError("no such user")', "os._exit(1)")
    (tmp_path / "job.py").write_text(f"import os\n{text}")
    (tmp_path / "bad").touch()
    code, text = said(tmp_path, "penstock.cli.main", "run", "job.py", "--cluster", cluster.rest_url)
    assert code == 1, text
    call = r"was lost: it exited with status 1 while a function was in a call, at job\.py:18 in checked: os\._exit ends"
    assert re.search(call, " ".join(text.split())), text


def test_ctrl_c_on_a_cluster_says_that_the_job_goes_on(cluster, endless, tmp_path):
    _, printed = endless
    wait_until(lambda: [j for j in cluster.client().jobs() if j["state"] == "RUNNING"], printed, step=0.1)
    command = [sys.executable, "-m", "penstock.cli.main", "run", "job.py", "--cluster", cluster.rest_url, "--attach"]
    with interruptible():
        run = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    with run:
        lines = list(itertools.takewhile(lambda line: "endless RUNNING" not in line, iter(run.stdout.readline, "")))
        run.send_signal(signal.SIGINT)
        text = "".join(lines) + run.stdout.read()
    assert "endless keeps running in the cluster" in text
    assert f"`penstock stop endless --cluster {cluster.rest_url}` ends it with a savepoint" in text
    assert f"`penstock run job.py --attach --cluster {cluster.rest_url}` follows it again" in text
    assert [j["state"] for j in cluster.client().jobs() if j["name"] == "endless"][:1] == ["RUNNING"]


def test_a_closed_terminal_ends_an_embedded_run_with_all_its_processes(tmp_path):
    (tmp_path / "job.py").write_text(endless_job(tmp_path))
    command = [sys.executable, "-m", "penstock.cli.main", "run", "job.py"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as run:
        said = list(itertools.takewhile(lambda line: "endless RUNNING" not in line, run.stdout))
        tree = proc_tree.descendants(run.pid)
        assert len(tree) >= 4, f"a JobManager, a TaskManager, a template, a worker: {said}"
        os.killpg(run.pid, signal.SIGHUP)
    left = lambda: list(filter(proc_tree.alive, tree))
    wait_until(lambda: not left(), lambda: f"the end of {left()}")


def test_a_job_that_waits_for_slots_says_so_and_holds_up_no_smaller_one(tmp_path, cluster, endless):
    _, printed = endless
    wait_until(lambda: [j for j in cluster.client().jobs() if j["state"] == "RUNNING"], printed, step=0.1)
    wide = (tmp_path / "job.py").read_text().replace("Environment(1", "Environment(2").replace("endless", "wide")
    (tmp_path / "wide.py").write_text(wide.replace("splits=1", "splits=2"))
    needed = "waits for slots: it needs 2 slots, 1 of 2 is free (endless holds 1); after "
    assert needed in penstock(cluster, "run", str(tmp_path / "wide.py"), "--detached")
    needed = needed.replace("waits", "waiting")
    waits = lambda: needed in penstock(cluster, "show", "wide")
    wait_until(waits, lambda: penstock(cluster, "show", "wide"), step=0.1)
    assert "waiting for 2 slots, 1 of 2 is free (endless holds 1)" in penstock(cluster, "story", "wide")
    (tmp_path / "small.py").write_text((tmp_path / "job.py").read_text().replace("endless", "small"))
    penstock(cluster, "run", str(tmp_path / "small.py"), "--detached")
    running = lambda: {j["name"] for j in cluster.client().jobs() if j["state"] == "RUNNING"} == {"endless", "small"}
    wait_until(running, lambda: cluster.client().jobs(), step=0.1)


def test_a_job_that_is_larger_than_the_cluster_is_refused(tmp_path, cluster):
    (tmp_path / "job.py").write_text(endless_job(tmp_path).replace("ment(1", "ment(3"))
    code, text = said(tmp_path, "penstock.cli.main", "run", "job.py", "--cluster", cluster.rest_url)
    assert code != 0
    assert "job 'endless' needs 3 slots, but this cluster has 2 (lower the parallelism" in " ".join(text.split())
