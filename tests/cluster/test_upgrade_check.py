"""`penstock upgrade` from outside: what cannot work is refused while the running version goes on."""

import os
import re
import subprocess
import sys

import pytest
from tests.support.waiting import wait_until

from penstock.client.local_cluster import LocalCluster, LocalClusterConfig

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

FUNCTION = """
from collections.abc import Iterator

import penstock as ps


class Seen(ps.Schema):
    n: int{more}


class Total(ps.Schema):
    user_id: int
    n: int


class Count(ps.KeyedProcessFunction):
    seen: ps.ValueState[Seen] = ps.value_state()

    def process(self, row, ctx) -> Iterator[Total]:
        n = (self.seen.value().n if self.seen.value() else 0) + 1
        self.seen.update(Seen(n=n{given}))
        yield Total(user_id=row.user_id, n=n)
"""
JOB = """
import penstock as ps
from counting import Count, Total
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink

env = ps.Environment(1, checkpoint_interval="200ms", checkpoint_root={root!r})
orders = env.from_source(DatagenSource(splits=1, users=3, rows_per_second=50), uid="orders")
counts = orders.key_by("user_id").process(Count(), returns=Total).uid("counts")
counts{step}.sink_to(FileSink({out!r}), uid="out")
env.execute("counting")
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cluster")
    with LocalCluster(LocalClusterConfig(taskmanagers=1, slots_per_taskmanager=2, directory=folder)) as running:
        yield running


def penstock(cluster, *command, code=0):
    """Return what a command prints on either stream, on one line."""
    environment = {**os.environ, "COLUMNS": "300"}
    whole = [sys.executable, "-m", "penstock.cli.main", *command, "--cluster", cluster.rest_url]
    done = subprocess.run(whole, env=environment, capture_output=True, text=True, check=False)
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == code, said
    return said


@pytest.fixture
def version(tmp_path):
    """Write a version of the job into a folder of its own and return its job file."""

    def write(name, *, more="", given="", step=""):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "counting.py").write_text(FUNCTION.format(more=more, given=given))
        text = JOB.format(root=str(tmp_path / "root"), out=str(tmp_path / "out"), step=step)
        (folder / "job.py").write_text(text)
        return str(folder / "job.py")

    return write


def runs(cluster):
    """Return the newest run of the job and its number of completed checkpoints."""
    (job,) = cluster.client().jobs()
    return job["jid"], cluster.client().summary(job["jid"])["checkpoints-completed"]


def test_an_upgrade_is_refused_before_anything_stops_and_keeps_the_parallelism(cluster, version):
    first = version("v1")
    assert penstock(cluster, "run", first, "--detached").startswith(f"reading {first} ")
    wait_until(lambda: runs(cluster)[1] > 1, lambda: runs(cluster), step=0.1)
    job_id, _ = runs(cluster)
    started = cluster.client().job(job_id)["start-time"]

    said = penstock(
        cluster, "upgrade", "counting", version("v2", more="\n    device: str", given=", device='x'"), code=1
    )
    assert re.search(r"not upgraded: job.py:\d+: state 'seen' of 'counts': device \(string\) was added", said), said
    assert "stops with a savepoint" not in said
    assert said.startswith("reading ")
    client = cluster.client()
    assert client.job(job_id)["state"] == "RUNNING"
    assert client.job(job_id)["start-time"] == started
    kinds = [entry["text"] for entry in client.story(job_id) if entry["kind"] == "upgrade"]
    assert len(kinds) == 1, kinds
    assert re.match(r"refused \(\S+/v2/job.py\): job.py:\d+: state 'seen'", kinds[0]), kinds
    said = penstock(cluster, "upgrade", "counting", "--status")
    assert re.match(r"upgrade refused: the running version was not touched: job.py:\d+: state 'seen'", said), said
    assert re.search(r"new version: \S+/v2/job.py requested at 20", said), said

    penstock(cluster, "rescale", "counting", "2")
    step = ".filter(lambda row: row.n > 0)"
    said = penstock(cluster, "upgrade", "counting", version("v3", step=step), "--checkpoints", "1")
    assert "counts keeps parallelism 2 although the file says 1; --parallelism N changes it" in said
    widths = {v["name"]: v["parallelism"] for v in client.job(job_id)["vertices"]}
    assert set(widths.values()) == {2}, widths
    said = penstock(cluster, "upgrade", "counting", version("v4"), "--checkpoints", "1", "--parallelism", "1")
    assert "counts: parallelism 2 -> 1" in said
    assert {v["parallelism"] for v in client.job(job_id)["vertices"]} == {1}
    client.cancel(job_id)
