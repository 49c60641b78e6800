"""What the JobManager answers without FastAPI is what the whole API would have answered."""

import asyncio
import functools
import hashlib
import json

import pytest

from penstock.config.settings import JobSettings
from penstock.core.clock import ManualClock
from penstock.core.errors import (
    ConnectorError,
    JobIdentityError,
    NotFoundError,
    NotStartedError,
    StorageError,
    UnreachableError,
)
from penstock.jobmanager.messages.views import (
    CheckpointsView,
    ExceptionView,
    JobDetail,
    JobSummary,
    LastWorkerView,
    TaskManagerView,
)
from penstock.rest.server.app import create_app
from penstock.rest.server.fast_app import FastApp
from penstock.rest.server.fast_routes import status_of

JOB = "1" * 32
SUMMARY = JobSummary(
    job_id=JOB, name="t\u00fc", state="RUNNING", run_id="r", start_ms=5, end_ms=-1, last_modified_ms=6, tasks={},
    restarts=0,
)  # fmt: skip
DETAIL = JobDetail(summary=SUMMARY, vertices=(), edges=(), settings=JobSettings(), timestamps={"RUNNING": 5})
TASKMANAGER = TaskManagerView(
    taskmanager_id="tm", host="h", pid=3, slots=2, free_slots=1, registered_ms=1, last_heartbeat_ms=2, workers=()
)


class Dispatcher:
    """One job, and a record of what it was asked."""

    def __init__(self):
        self.asked = []

    def detail(self, job_id):
        if job_id != JOB:
            raise NotFoundError(f"no job {job_id!r}", hint="see `penstock list`")
        return DETAIL

    def resolve(self, job):
        return self.detail(job).summary.job_id

    def checkpoints(self, job_id):
        return CheckpointsView(completed=2, failed=0, in_progress=0, restored=1, history=())

    def exceptions(self, job_id):
        return (ExceptionView(at_ms=7, error="ValueError: no", detail="Traceback"),)

    async def wait(self, job_id, timeout_ms):
        self.asked.append(("wait", job_id, timeout_ms))

    async def submit(self, graph, options):
        self.asked.append(("submit", graph, options))
        if graph == b"taken":
            raise JobIdentityError("runs already", hint="stop it")
        return JOB

    def taskmanagers(self):
        return (TASKMANAGER,)

    def last_workers(self, job_id):
        return (LastWorkerView(worker_id="w", taskmanager_id="tm"),)


async def ask(application, method, path, query="", body=(b"",)):
    parts = [{"type": "http.request", "body": p, "more_body": i < len(body) - 1} for i, p in enumerate(body)]
    sent = []

    async def receive():
        return parts.pop(0) if parts else {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path,
        "raw_path": path.encode(), "root_path": "", "scheme": "http", "query_string": query.encode(),
        "headers": [(b"content-type", b"application/octet-stream")], "client": ("127.0.0.1", 1), "server": ("x", 80),
    }  # fmt: skip
    await application(scope, receive, send)
    return sent[0]["status"], json.loads(b"".join(m.get("body", b"") for m in sent[1:]))


def door():
    """Return a dispatcher and the door to it."""
    dispatcher = Dispatcher()
    return dispatcher, FastApp(dispatcher, ManualClock(), None)


def whole():
    """Return a dispatcher that was asked nothing, and the whole API over it, which is made once."""
    dispatcher, application = _whole()
    dispatcher.asked = []
    return dispatcher, application


@functools.cache
def _whole():
    dispatcher = Dispatcher()
    return dispatcher, create_app(dispatcher, ManualClock(), None)


@pytest.mark.parametrize(
    ("method", "path", "query", "body", "status"),
    [
        ("GET", f"/v1/penstock/jobs/{JOB}/summary", "", (b"",), 200),
        ("GET", f"/v1/penstock/jobs/{JOB}/wait", "ms=100", (b"",), 200),
        ("GET", f"/v1/penstock/jobs/{JOB}/wait", "", (b"",), 200),
        ("GET", f"/v1/penstock/jobs/{JOB}/wait", "ms=99999999", (b"",), 200),
        ("GET", "/v1/penstock/jobs/2/summary", "", (b"",), 404),
        ("GET", "/v1/taskmanagers", "", (b"",), 200),
        ("GET", f"/v1/penstock/jobs/{JOB}/workers", "", (b"",), 200),
        ("GET", "/v1/penstock/jobs/2/workers", "", (b"",), 404),
        ("GET", f"/v1/jobs/{JOB}/checkpoints", "", (b"",), 200),
        ("GET", f"/v1/jobs/{JOB}/exceptions", "", (b"",), 200),
        ("POST", "/v1/penstock/submit", "token=t&claim=false&fresh=true&from=s3%3A%2F%2Fb%2Fs+p", (b"gr", b"aph"), 202),
        ("POST", "/v1/penstock/submit", "", (b"taken",), 409),
    ],
)
async def test_the_door_and_the_whole_api_say_the_same(method, path, query, body, status):
    answers, asked = [], []
    for dispatcher, application in (door(), whole()):
        answers.append(await ask(application, method, path, query, body))
        asked.append(dispatcher.asked)
    assert answers[0] == answers[1]
    assert asked[0] == asked[1]
    assert answers[0][0] == status


async def test_a_graph_that_is_not_the_one_that_was_sent_is_refused():
    path = "/v1/penstock/submit"
    for dispatcher, application in (door(), whole()):
        status, answer = await ask(
            application, "POST", path, f"sha256={hashlib.sha256(b'graph').hexdigest()}", (b"grapf",)
        )
        assert (status, "SHA-256" in answer["errors"][0], dispatcher.asked) == (400, True, [])
        status, _ = await ask(application, "POST", path, f"sha256={hashlib.sha256(b'graph').hexdigest()}", (b"graph",))
        assert status == 202


async def test_a_number_that_is_none_is_refused():
    status, answer = await ask(
        FastApp(Dispatcher(), ManualClock(), None), "GET", f"/v1/penstock/jobs/{JOB}/wait", "ms=no"
    )
    assert status == 400
    assert "ms" in answer["errors"][0]


async def test_anything_else_is_answered_by_the_whole_api():
    ended = asyncio.Event()
    door = FastApp(Dispatcher(), ManualClock(), ended.set)
    assert (await ask(door, "DELETE", "/v1/cluster"))[0] == 200
    assert ended.is_set()
    assert (await ask(door, "GET", "/v1/no/such/path"))[0] == 404


@pytest.mark.parametrize("path", ["/v1/no/such/path", "/no/such/path", "/v1/penstock/jobs/1/nothing", "/v2/jobs"])
async def test_an_unknown_path_is_named_with_the_place_that_lists_all_paths(path):
    status, answer = await ask(whole()[1], "GET", path)
    (told,) = answer["errors"]
    assert (status, set(answer)) == (404, {"errors"})
    assert told == f"there is no path '{path}' (/openapi.json and /docs list all paths, /jobs/overview all jobs)"
    assert (await ask(whole()[1], "GET", "/openapi.json"))[0] == 200


async def test_an_unknown_path_is_shortened_and_holds_no_secret():
    _, answer = await ask(whole()[1], "GET", "/v1/jobs/s3://user:pass@bucket/" + "a" * 5_000)
    assert len(answer["errors"][0]) < 400
    assert "user:pass" not in answer["errors"][0]


@pytest.mark.parametrize("path", ["/v1/taskmanagers", f"/v1/jobs/{JOB}/plan"])
async def test_a_method_that_a_path_does_not_have_is_named_with_those_it_has(path):
    status, answer = await ask(whole()[1], "DELETE", path)
    assert status == 405
    assert answer["errors"] == [f"'{path}' does not take DELETE (it takes GET; /openapi.json and /docs list all paths)"]


@pytest.mark.parametrize(
    ("kind", "status"), [(ConnectorError, 400), (UnreachableError, 502), (NotStartedError, 503), (StorageError, 500)]
)
def test_only_what_the_user_must_correct_is_a_bad_request(kind, status):
    assert status_of(kind("no")) == status
