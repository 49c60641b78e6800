"""Requests in both roles: the leader answers, a standby forwards, and both refuse while no JobManager leads."""

import asyncio
import json
from types import SimpleNamespace

import pytest
from tests.unit.jobmanager.conftest import make_graph

from penstock.checkpoint.ha_records import JobRecord, write_record
from penstock.checkpoint.job_lease import LeaseHolder
from penstock.checkpoint.leader_lease import LeaderLease
from penstock.checkpoint.memory_store import MemoryStore
from penstock.checkpoint.standby_records import StandbyRecord
from penstock.core.clock import ManualClock
from penstock.core.errors import LeadershipLostError, StorageError
from penstock.graph.job_graph import encode_graph
from penstock.jobmanager.jobs.suspended_jobs import SuspendedJobs
from penstock.rest.server import role_app
from penstock.rest.server.role_app import LEADER_PATH, RoleApp


class Manager:
    """A term: `error` is what the store says when the lease is renewed."""

    def __init__(self, rest="", error=None):
        holder = LeaseHolder(id="root", host="h", machine="", pid=1)
        lease = LeaderLease(generation=2, jobmanager_id="b", holder=holder, rest=rest, rpc="b:6123") if rest else None
        self.rest_url = "http://own:8081"
        self.leadership, self.error, self.failed = SimpleNamespace(leader=lease, confirm=self.confirm), error, []
        self.handed_over, self.suspended_jobs, self.has_joined = False, None, True

    async def confirm(self):
        if self.error is not None:
            raise self.error

    def fail(self, error):
        self.failed.append(error)

    def hand_over(self):
        self.handed_over = True


def ask(role, path="/v1/jobs", query="", headers=(), method="GET"):
    """Return status, headers and document of an answer."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "query_string": query.encode(), "headers": list(headers)}
    asyncio.run(role(scope, receive, send))
    body = b"".join(message.get("body", b"") for message in sent)
    return sent[0]["status"], dict(sent[0]["headers"]), json.loads(body)


async def application(scope, _receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": json.dumps({"led": scope["path"]}).encode()})


def role_of(manager, *, leads, **options):
    role = RoleApp(ManualClock(), **options)
    role.standing(manager)
    if leads:
        role.leading(application)
    return role


def test_the_leader_answers():
    role = role_of(Manager("http://b:8081"), leads=True)
    assert ask(role)[2] == {"led": "/v1/jobs"}
    assert ask(role, LEADER_PATH)[2] == {
        "role": "leader",
        "leader": {"url": "http://b:8081", "rpc": "b:6123", "generation": 2},
    }


@pytest.mark.parametrize("path", ["/v1/penstock/standbys", "/penstock/standbys"])
def test_the_leader_lists_the_standbys_and_a_standby_forwards(path):
    manager = Manager("http://b:8081")
    standby = StandbyRecord(
        jobmanager_id="c", holder=LeaseHolder(id="root", host="h", machine="", pid=7), rest="http://c"
    )
    manager.leadership.standbys = (standby,)
    found = ask(role_of(manager, leads=True), path)[2]
    assert found == {"standbys": [{"url": "http://c", "host": "h", "pid": 7}]}
    assert ask(role_of(Manager(), leads=False), path)[0] == 503


def test_a_leader_that_hands_over_answers_no_longer():
    manager = Manager("http://own:8081")
    role = role_of(manager, leads=True)
    assert ask(role, f"{LEADER_PATH}/hand-over", method="POST")[0] == 202
    assert manager.handed_over
    assert ask(role)[0] == 503, "another one leads soon"


@pytest.mark.parametrize("path", [LEADER_PATH, "/penstock/leader"])
def test_a_standby_names_the_leader(path):
    found = ask(role_of(Manager("http://b:8081"), leads=False), path)[2]
    assert (found["role"], found["leader"]["url"]) == ("standby", "http://b:8081")


@pytest.mark.parametrize("rest", ["", "http://b:8081"])
def test_nobody_leads_or_two_standbys_name_each_other(rest):
    headers = [(b"x-penstock-forwarded", b"1")] if rest else []
    status, given, document = ask(role_of(Manager(rest), leads=False), headers=headers)
    assert (status, given[b"retry-after"]) == (503, b"1")
    assert document["errors"] == ["this JobManager is a standby, and no other leads yet (try again in a few seconds)"]


def test_a_new_leader_that_still_recovers_asks_for_patience():
    status, given, _ = ask(role_of(Manager("http://own:8081"), leads=False))
    assert (status, given[b"retry-after"]) == (503, b"1")


def test_with_certificates_a_standby_redirects():
    status, given, _ = ask(role_of(Manager("https://b:8081"), leads=False), "/v1/jobs", "a=1&b=2")
    assert (status, given[b"location"]) == (307, b"https://b:8081/v1/jobs?a=1&b=2")


def test_a_leader_that_was_suspended_answers_that_it_does_not_lead():
    lost = LeadershipLostError("a JobManager of generation 3 has taken over")
    manager = Manager(error=lost)
    role = role_of(manager, leads=True)
    assert ask(role)[0] == 503
    assert manager.failed == [lost]
    assert ask(role, LEADER_PATH)[2]["role"] == "standby"


def test_a_leader_whose_store_fails_answers():
    role = role_of(Manager("http://b:8081", error=StorageError("the store does not answer")), leads=True)
    assert ask(role)[2] == {"led": "/v1/jobs"}


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_read_that_waits_for_a_suspended_leader_is_answered_by_the_next_one(monkeypatch, method):
    role = role_of(Manager("http://b:8081"), leads=False, look_s=0)
    waiting = []

    async def connected(place):
        return place

    async def exchange(place, *_):
        waiting.append(place)
        role.leading(application)  # this process takes over meanwhile
        await asyncio.Event().wait()

    monkeypatch.setattr(role_app, "_connected", connected)
    monkeypatch.setattr(role_app, "_exchange", exchange)
    assert ask(role, method=method)[2] == {"led": "/v1/jobs"}
    assert waiting == ["http://b:8081"]


def test_the_last_known_leader_is_named_while_a_term_begins():
    role = role_of(Manager("http://b:8081"), leads=False)
    assert ask(role, LEADER_PATH)[2]["leader"]["url"] == "http://b:8081"
    beginning = Manager()
    beginning.leadership = None
    role.standing(beginning)
    assert ask(role, LEADER_PATH)[2]["leader"]["url"] == "http://b:8081"


RUNNING = JobRecord(
    job_id="a" * 32, name="orders", run_id="r", token="", submitted_ms=2, graph=encode_graph(make_graph())
)
ENDED = JobRecord(
    job_id="b" * 32, name="bills", run_id="r", token="", submitted_ms=1, graph=RUNNING.graph, ended="FINISHED",
    ended_ms=7,
)  # fmt: skip


def without_leader(rest="http://own:8081"):
    """Return a standby over a store with a job that has not ended, one that has, and one that cannot be read."""
    store, manager = MemoryStore(), Manager(rest)
    for record in (RUNNING, ENDED):
        write_record(store, record)
    store.put(f"jobs/{'c' * 32}.json", b"{")
    manager.suspended_jobs = SuspendedJobs(store, ManualClock())
    return role_of(manager, leads=False), store


@pytest.mark.parametrize("version", ["", "/v1"])
@pytest.mark.parametrize("rest", ["http://own:8081", "http://b:8081"], ids=["its own lead", "a dead leader's"])
def test_a_standby_shows_the_recorded_jobs_while_nobody_leads(monkeypatch, version, rest):
    async def connected(place):
        raise ConnectionRefusedError

    monkeypatch.setattr(role_app, "_connected", connected)
    role, store = without_leader(rest)
    before = {key: store.read(key) for key in store.list("")}
    status, headers, found = ask(role, f"{version}/jobs")
    assert (status, headers[b"x-penstock-role"]) == (200, b"standby")
    states = [("a" * 32, "SUSPENDED"), ("b" * 32, "FINISHED"), ("c" * 32, "SUSPENDED")]
    assert [(job["id"], job["status"]) for job in found["jobs"]] == states
    found = ask(role, f"{version}/jobs/overview")[2]["jobs"]
    assert [(job["jid"], job["state"]) for job in found] == states
    assert [job["name"] for job in found[:2]] == ["orders", "bills"]
    job = ask(role, f"{version}/jobs/orders")[2]
    assert (job["jid"], job["state"], job["end-time"]) == ("a" * 32, "SUSPENDED", -1)
    assert [vertex["name"] for vertex in job["vertices"]] == [vertex.name for vertex in make_graph().vertices]
    assert ask(role, f"{version}/jobs/{'b' * 32}")[2]["end-time"] == 7
    assert {key: store.read(key) for key in store.list("")} == before


@pytest.mark.parametrize(
    "path", ["/v1/jobs/unknown", "/v1/jobs/orders/status", "/v1/jobs/metrics", "/v1/jobsx", "/v1/overview"]
)
def test_a_standby_answers_nothing_else_while_nobody_leads(path):
    """Flink's client polls `/jobs/:id/status`, and programs take SUSPENDED there for the end of the job."""
    role, _ = without_leader()
    status, headers, _ = ask(role, path)
    assert (status, headers[b"retry-after"]) == (503, b"1")
    assert b"x-penstock-role" not in headers


@pytest.mark.parametrize(("method", "path"), [("PATCH", "/v1/jobs/orders"), ("POST", "/v1/jobs")])
def test_a_standby_takes_no_request_while_nobody_leads(method, path):
    assert ask(without_leader()[0], path, method=method)[0] == 503


@pytest.mark.parametrize("problem", ["unknown", "silent", "passed on", "not joined"])
def test_a_standby_shows_no_job_as_suspended_if_another_may_lead(monkeypatch, problem):
    async def connected(place):
        raise TimeoutError

    monkeypatch.setattr(role_app, "_connected", connected)
    role, _ = without_leader({"unknown": "", "not joined": "http://own:8081"}.get(problem, "http://b:8081"))
    role._manager.has_joined = problem != "not joined"
    status, headers, _ = ask(role, headers=[(b"x-penstock-forwarded", b"1")] if problem == "passed on" else [])
    assert (status, headers[b"retry-after"]) == (503, b"1")


def test_a_standby_whose_store_fails_asks_for_patience(caplog):
    role, store = without_leader()
    store.fault = failing
    status, headers, document = ask(role)
    assert (status, headers[b"retry-after"]) == (503, b"1")
    assert document["errors"] == ["this JobManager is a standby, and no other leads yet (try again in a few seconds)"]
    assert "cannot read the recorded jobs: no answer" in caplog.text


def failing(*_):
    raise StorageError("no answer")
