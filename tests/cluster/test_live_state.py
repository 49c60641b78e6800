"""State of a running job on real processes: asked for by key through REST, Python and the command line, over a kill."""

import json
import os
import signal
import urllib.parse
import urllib.request

import pytest
from tests.cluster.stage import _Capture
from tests.support.waiting import wait_until
from typer.testing import CliRunner

from penstock.api.environment import use_executor
from penstock.cli.main import commands
from penstock.cli.start.run import execute_file
from penstock.client.executors import ClusterExecutor, SubmitOptions
from penstock.client.local_cluster import LocalCluster, LocalClusterConfig
from penstock.core.errors import NotFoundError, PenstockError, UsageError

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

USERS, RATE = 20, 4_000
JOB = """
from collections.abc import Iterator
from typing import NamedTuple

import penstock as ps
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink


class Total(ps.Schema):
    user_id: int
    orders: int


class Pair(NamedTuple):
    orders: int
    amount: int


class Totals(ps.KeyedProcessFunction):
    pair: ps.ValueState[Pair] = ps.value_state()

    def process(self, row, ctx: ps.ProcessContext) -> Iterator[Total]:
        pair = self.pair.value() or Pair(0, 0)
        self.pair.update(Pair(pair.orders + 1, pair.amount + row.amount))
        yield Total(user_id=row.user_id, orders=pair.orders + 1)


env = ps.Environment(parallelism=2, checkpoint_interval="300ms", checkpoint_root={root!r}, combine="off")
orders = env.from_source(
    DatagenSource(users={users}, rows_per_second={rate}),
    watermarks=ps.WatermarkStrategy.bounded_out_of_orderness("5s", timestamp="ts"),
    uid="orders",
)
orders.key_by("user_id").process(Totals()).uid("people").sink_to(FileSink({root!r} + "/people"), uid="out")
(orders.key_by("user_id", "amount").window(ps.Tumbling("1h")).aggregate(n=ps.count()).uid("windows")
       .sink_to(FileSink({root!r} + "/windows"), uid="out2"))
env.execute("live")
"""


@pytest.fixture
def cluster(tmp_path):
    made = LocalCluster(LocalClusterConfig(taskmanagers=1, slots_per_taskmanager=2, directory=tmp_path / "cluster"))
    made.start()
    yield made
    made.close()


def submitted(cluster, folder):
    path = folder / "job.py"
    values = {"root": str(folder / "root"), "users": USERS, "rate": RATE}
    path.write_text(JOB.format(**values))
    found = _Capture()
    with use_executor(found):
        execute_file(path)
    return ClusterExecutor(url=cluster.rest_url, options=SubmitOptions()).submit(found.graphs[-1])


def orders_of(job, user):
    """Return the orders counted for a user; none while there is no answer."""
    try:
        return job.query_state("people", "pair", user)["rows"][0]["orders"]
    except PenstockError:
        return None


def command(cluster, *arguments):
    done = CliRunner().invoke(commands, [*arguments, "--cluster", cluster.rest_url, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


def test_live_state_over_a_kill(cluster, tmp_path):
    job = submitted(cluster, tmp_path)
    wait_until(lambda: orders_of(job, 3) is not None, "the first answer")
    wait_until(lambda: job.client.summary(job.job_id).get("checkpoints-completed", 0) >= 1, "a checkpoint")

    before = [orders_of(job, user) for user in range(USERS)]
    assert all(before), "keys of both subtasks"
    owners = {job.query_state("people", "pair", user)["subtask"] for user in range(USERS)}
    assert owners == {0, 1}
    found = job.query_state("people", "pair", 3)
    assert found["schema"] == [{"name": n, "type": "int64"} for n in ("__namespace", "orders", "amount")]
    assert (found["key"], found["more"], found["consistency"]) == ({"user_id": 3}, False, "read-uncommitted")

    pid = job.client.workers(job.job_id)[0]["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: (orders_of(job, 3) or 0) > before[3], "rows after the restart")
    wait_until(lambda: windows(cluster, job), "a window by two columns")
    for key, error, text in [
        (10**6, NotFoundError, "has no rows of the key"),
        ("x", UsageError, "has type int64, and"),
    ]:
        with pytest.raises(error, match=text):
            job.query_state("people", "pair", key)
    with pytest.raises(NotFoundError, match="has no state 'pairs'"):
        job.query_state("people", "pairs", 1)
    with pytest.raises(NotFoundError, match="no operator with uid 'persons'"):
        job.query_state("persons", "pair", 1)
    with pytest.raises(NotFoundError, match="no job"):
        job.client.state_value("none-such", "people", "pair", ["1"], 10)

    row = command(cluster, "state", "get", "live", "people", "pair", "3")["rows"][0]
    assert row["orders"] > before[3]
    states = {(state["uid"], state["name"]): state for state in command(cluster, "show", "live", "--state")}
    pair = states["people", "pair"]
    assert pair["rows"] == USERS
    assert [part["key-groups"] for part in pair["subtasks"]] == [[0, 511], [512, 1023]]
    hot = {operator["uid"]: operator for operator in command(cluster, "show", "live", "--hot-keys")}
    assert {key["key"]["user_id"] for key in hot["people"]["keys"]} == set(range(USERS))
    assert all(0.01 < key["share"] < 0.2 for key in hot["people"]["keys"])
    assert set(hot["windows"]["keys"][0]["key"]) == {"user_id", "amount"}

    job.cancel()
    job.wait(timeout_ms=60_000)
    with pytest.raises(UsageError, match=r"job 'live' .* is CANCELED"):
        job.query_state("people", "pair", 3)


def windows(cluster, job):
    """Return the panes of the first hot key of two columns, asked for in both ways."""
    operators = {operator["uid"]: operator for operator in job.client.hot_keys(job.job_id)}
    key = operators["windows"]["keys"][0]["key"] if operators["windows"]["keys"] else None
    if key is None:
        return None
    texts = urllib.parse.urlencode([("key", key["user_id"]), ("key", key["amount"])])
    url = f"{cluster.rest_url}/v1/penstock/jobs/{job.job_id}/state/windows/panes"
    try:
        with urllib.request.urlopen(f"{url}?{texts}", timeout=30) as answer:
            plain = json.load(answer)["rows"]
        with urllib.request.urlopen(f"{url}?{urllib.parse.urlencode({'key': json.dumps(key)})}", timeout=30) as answer:
            as_json = json.load(answer)["rows"]
    except urllib.error.HTTPError:
        return None  # its window has closed
    assert [row["__namespace"] for row in plain] == [row["__namespace"] for row in as_json]
    return plain
