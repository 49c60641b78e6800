"""Hostile requests against the whole API in process: each is refused with one clear error, and nothing is done."""

import base64
import json

import pytest

from penstock.config.security import Security, TokenEntry, token_digest
from penstock.core.clock import ManualClock
from penstock.core.errors import NotFoundError
from penstock.graph.job_graph import read_submitted
from penstock.rest.server.fast_app import FastApp
from penstock.rest.server.guard import BodyTimeouts, Guard

JOB = "1" * 32
TOKENS = {role: role[0] * 64 for role in ("viewer", "operator", "admin")}
SECURITY = Security(tokens=tuple(TokenEntry(role, f"a-{role}", token_digest(token)) for role, token in TOKENS.items()))
SUBMIT, CANCEL = "/v1/penstock/submit", f"/v1/jobs/{JOB}"
NOISE = bytes(range(1, 256)) * 8


class Dispatcher:
    """Reads what is submitted, as the real one does, and notes what it was asked to do."""

    queries = None

    def __init__(self):
        self.done = []

    async def submit(self, graph, options):
        read_submitted(graph)
        self.done.append(("submit", options))

    async def cancel(self, job_id):
        self.done.append(("cancel", job_id))

    async def stop(self, job_id, **options):
        self.done.append(("stop", job_id, options))

    def resolve(self, job):
        return job

    def taskmanagers(self):
        return ()

    async def worker_log(self, worker_id):
        raise NotFoundError(f"no worker {worker_id!r}", hint="see `penstock show`")

    def jobs(self):
        return ()

    def detail(self, job_id):
        raise NotFoundError(f"no job {job_id!r}", hint="see `penstock list`")


def _password(token):
    return "Basic " + base64.b64encode(f"user:{token}".encode()).decode()


#: Name, status, method, path, and the role whose token comes with it, another token, the body, other headers.
REFUSED = [
    ("no token, reading", 401, "GET", "/v1/jobs/overview", {}),
    ("no token, cancel", 401, "PATCH", CANCEL, {}),
    ("no token, submit", 401, "POST", SUBMIT, {"body": b"x"}),
    ("no token, metrics", 401, "GET", "/metrics", {}),
    ("no token, documentation", 401, "GET", "/docs", {}),
    ("wrong token", 401, "GET", "/v1/jobs", {"token": "0" * 64}),
    ("the hash in place of the token", 401, "GET", "/v1/jobs", {"token": token_digest(TOKENS["admin"])}),
    ("a token with something after it", 401, "GET", "/v1/jobs", {"token": TOKENS["admin"] + "0"}),
    ("viewer cancels", 403, "PATCH", CANCEL, {"role": "viewer"}),
    ("viewer stops", 403, "POST", f"/jobs/{JOB}/stop", {"role": "viewer", "body": b"{}"}),
    ("viewer ends the cluster", 403, "DELETE", "/v1/cluster", {"role": "viewer"}),
    ("operator brings code", 403, "POST", SUBMIT, {"role": "operator", "body": b"x"}),
    ("operator ends the cluster", 403, "DELETE", "/cluster", {"role": "operator"}),
    ("another method", 403, "PROPFIND", "/v1/jobs", {"role": "operator"}),
    ("oversized, declared", 413, "POST", SUBMIT, {"role": "admin", "headers": {"content-length": "70000000000"}}),
    ("oversized, sent", 413, "POST", f"/jobs/{JOB}/stop", {"role": "operator", "body": b" " * (1 << 20) + b"{}"}),
    ("a size that is none", 413, "POST", SUBMIT, {"role": "admin", "headers": {"content-length": "-1"}}),
    ("out of the folder", 400, "GET", "/v1/../../etc/passwd", {"role": "admin"}),
    ("out of the folder, backslashes", 400, "GET", "/v1/..\\..\\etc", {"role": "admin"}),
    ("a zero byte", 400, "GET", "/v1/jobs/\x00", {"role": "admin"}),
    ("a worker's log by a path", 404, "GET", "/v1/penstock/workers/a.b/log", {"role": "admin"}),
    ("a graph under another hash", 400, "POST", SUBMIT, {"role": "admin", "query": "sha256=" + "0" * 64, "body": b"x"}),
    ("no graph", 400, "POST", SUBMIT, {"role": "admin"}),
    ("a graph that is noise", 400, "POST", SUBMIT, {"role": "admin", "body": NOISE}),
    ("a pickle as graph", 400, "POST", SUBMIT, {"role": "admin", "body": b"cos\nsystem\n(S'exit 1'\ntR."}),
    ("a graph that is another document", 400, "POST", SUBMIT, {"role": "admin", "body": b'{"name": 5}'}),
    ("a very deep document", 400, "POST", SUBMIT, {"role": "admin", "body": b"[" * 100_000}),
    ("no JSON", 400, "POST", f"/jobs/{JOB}/stop", {"role": "operator", "body": b"{"}),
    (
        "a page of another site", 403, "DELETE", "/cluster",
        {"headers": {"authorization": _password(TOKENS["admin"]), "origin": "http://evil.example"}},
    ),
]  # fmt: skip


async def ask(dispatcher, ended, method, path, *, role="", token="", body=b"", query="", headers=None):
    """Send one request; return its status, the text of the answer, and what the log says."""
    parts, sent, log = [{"type": "http.request", "body": body, "more_body": False}], [], []
    token = token or TOKENS.get(role, "")

    async def receive():
        return parts.pop(0) if parts else {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    given = {"host": "h", **({"authorization": f"Bearer {token}"} if token else {}), **(headers or {})}
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path,
        "raw_path": path.encode(), "root_path": "", "scheme": "http", "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
    }  # fmt: skip
    door = FastApp(dispatcher, ManualClock(), lambda: ended.append(True), None)
    await Guard(door, SECURITY, log.append, BodyTimeouts(linger=0.0))(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:]).decode(), log


@pytest.mark.parametrize(
    ("status", "method", "path", "options"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
async def test_it_is_refused_with_one_error_and_nothing_is_done(status, method, path, options):
    dispatcher, ended = Dispatcher(), []
    found, text, log = await ask(dispatcher, ended, method, path, **options)
    assert found == status, text
    (error,) = json.loads(text)["errors"]
    assert error
    assert not any(token in text + "".join(log) for token in TOKENS.values())
    assert not dispatcher.done
    assert not ended


async def test_who_may_do_it_does_it():
    """The same requests with the right tokens, so that the table is refused for its own reasons."""
    dispatcher, ended = Dispatcher(), []
    assert (await ask(dispatcher, ended, "PATCH", CANCEL, role="operator"))[0] == 202
    assert (await ask(dispatcher, ended, "DELETE", "/v1/cluster", role="admin"))[0] == 200
    assert (await ask(dispatcher, ended, "GET", "/v1/jobs", role="viewer"))[0] == 200
    assert dispatcher.done == [("cancel", JOB)]
    assert ended
