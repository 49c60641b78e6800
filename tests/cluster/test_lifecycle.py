"""Every lifecycle action on a running job, by the command line, by plain REST and from Python; exact after each."""

import json
import urllib.request

import pytest
from tests.cluster import lifecycle
from tests.cluster.lifecycle import ACTIONS, WAYS, Place, live
from tests.cluster.stage import cli
from tests.support.waiting import wait_until
from tests.ui.lifecycle_way import BrowserWay

from penstock.api.job_file import planned
from penstock.client.executors import ClusterExecutor, SubmitOptions
from penstock.client.handle import JobHandle
from penstock.client.rest_client import RestClient
from penstock.graph.job_graph import encode_graph

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]


class CliWay:
    """`penstock` commands."""

    def __init__(self, url, folder):
        self.folder, self.environment = folder, {"PENSTOCK_CLUSTER": url, "PENSTOCK_HOME": str(folder / "home")}
        self.url = url

    def _run(self, *words):
        said = cli(*words, "--json", cwd=self.folder, environment=self.environment)
        assert said.code == 0, said
        return said.value

    def submit(self, file, token, from_uri=""):
        where = ("--from", from_uri) if from_uri else ()
        return self._run("run", file, "--cluster", self.url, "--detached", "--token", token, *where)["jobid"]

    def savepoint(self, job_id, target):
        return self._run("savepoint", job_id, target)["savepoint"]

    def rescale(self, job_id, parallelism):
        self._run("rescale", job_id, parallelism)

    def upgrade(self, job_id, file):
        self._run("upgrade", job_id, file, "--checkpoints", 2)

    def cancel(self, job_id):
        assert self._run("cancel", job_id)["state"] == "CANCELED"

    def stop(self, job_id, target):
        return self._run("stop", job_id, "--target", target)["savepoint"]

    def drain(self, job_id, target):
        return self._run("stop", job_id, "--drain", "--target", target)["savepoint"]


class RestWay:
    """Requests as anybody can send them, with nothing of penstock's client."""

    def __init__(self, url, _folder):
        self.url = f"{url}/v1"

    def _ask(self, method, path, body=None):
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=lifecycle.LIMIT_S) as answer:
            return json.load(answer)

    def _done(self, path, request):
        found = {}

        def ended():
            found.update(self._ask("GET", f"{path}/{request}"))
            return found["status"]["id"] == "COMPLETED"

        wait_until(ended, lambda: str(found), seconds=lifecycle.LIMIT_S, step=0.1)
        operation = found["operation"] or {}
        assert "failure-cause" not in operation, operation
        return operation.get("location", "")

    def submit(self, file, token, from_uri=""):
        where = f"&from={from_uri}" if from_uri else ""
        graph = encode_graph(planned(file, {}, ""))
        return self._ask("POST", f"/penstock/submit?token={token}{where}", graph)["jobid"]

    def savepoint(self, job_id, target):
        path = f"/jobs/{job_id}/savepoints"
        return self._done(path, self._ask("POST", path, {"target-directory": target})["request-id"])

    def rescale(self, job_id, parallelism):
        path = f"/jobs/{job_id}/rescaling"
        self._done(path, self._ask("PATCH", f"{path}?parallelism={parallelism}")["request-id"])

    def upgrade(self, job_id, file):
        path = f"/penstock/jobs/{job_id}/upgrade"
        self._done(path, self._ask("POST", f"{path}?checkpoints=2", encode_graph(planned(file, {}, "")))["request-id"])

    def cancel(self, job_id):
        self._ask("PATCH", f"/jobs/{job_id}?mode=cancel")

    def stop(self, job_id, target):
        return self._stop(job_id, {"targetDirectory": target})

    def drain(self, job_id, target):
        return self._stop(job_id, {"targetDirectory": target, "drain": True})

    def _stop(self, job_id, body):
        return self._done(f"/jobs/{job_id}/savepoints", self._ask("POST", f"/jobs/{job_id}/stop", body)["request-id"])


class PythonWay:
    """Executors and handles, as job files and programs use them."""

    def __init__(self, url, _folder):
        self.url, self.rest = url, RestClient(url)

    def _job(self, job_id):
        return JobHandle(self.rest, job_id, "")

    def submit(self, file, token, from_uri=""):
        options = SubmitOptions(token=token, from_uri=from_uri or None)
        return ClusterExecutor(url=self.url, options=options).submit(planned(file, {}, "")).job_id

    def savepoint(self, job_id, target):
        return self._job(job_id).savepoint(target)

    def rescale(self, job_id, parallelism):
        self._job(job_id).rescale(parallelism)

    def upgrade(self, job_id, file):
        self._job(job_id).upgrade(file, checkpoints=2)

    def cancel(self, job_id):
        self._job(job_id).cancel()
        assert self._job(job_id).wait(timeout_ms=60_000) == "CANCELED"

    def stop(self, job_id, target):
        return self._job(job_id).stop(target=target)

    def drain(self, job_id, target):
        return self._job(job_id).stop(drain=True, target=target)


BY = {"cli": CliWay, "rest": RestWay, "python": PythonWay}
#: The way of each action in a life of all ways; that of a submit goes around.
TURNS = {"savepoint": "rest", "rescale": "cli", "upgrade": "python", "cancel": "rest", "stop": "cli", "drain": "python"}


class EachWay:
    """Every action once, and every way more than once."""

    def __init__(self, url, folder):
        self.by = {name: way(url, folder) for name, way in BY.items()}
        self.tokens = []
        for action, name in TURNS.items():
            setattr(self, action, getattr(self.by[name], action))

    def submit(self, file, token, from_uri=""):
        if token not in self.tokens:
            self.tokens.append(token)
        return self.by[tuple(BY)[len(self.tokens) % len(BY)]].submit(file, token, from_uri)


@pytest.fixture
def running(tmp_path):
    with lifecycle.cluster(tmp_path) as found:
        yield found


def test_no_cell_of_the_table_is_missing():
    assert (*BY, "ui") == WAYS
    missing = [
        (way.__name__, action) for way in (*BY.values(), BrowserWay) for action in ACTIONS if not hasattr(way, action)
    ]
    assert missing == []
    assert {"submit", *TURNS} == set(ACTIONS)
    assert set(TURNS.values()) == set(BY)


LIVES = {"each": EachWay, **BY}


@pytest.mark.parametrize("way", ["each", *(pytest.param(way, marks=pytest.mark.nightly) for way in BY)])
def test_a_life(running, tmp_path, way):
    live(Place(running, tmp_path, f"life-by-{way}"), LIVES[way](running.rest_url, tmp_path))
