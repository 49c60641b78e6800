"""What the REST client sends, and what it makes of answers."""

import contextlib
import hashlib
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from penstock.checkpoint.job_lease import LeaseHolder
from penstock.checkpoint.leader_lease import LeaderLease, take_lead
from penstock.checkpoint.stores import open_store
from penstock.client.rest_client import RestClient
from penstock.core.errors import JobIdentityError, NotFoundError, PenstockError, UsageError


class Handler(BaseHTTPRequestHandler):
    """Records requests; answers what the test has laid ready."""

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.seen.append((self.command, self.path, body))
        if self.server.ready is None:
            self.connection.close()
            return
        status, data = self.server.ready
        self.send_response(status)
        if status == 503:
            self.send_header("Retry-After", "1")
        if self.server.role:
            self.send_header("X-Penstock-Role", self.server.role)
        if status == 307:
            self.send_header("Location", self.server.location)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PATCH = do_DELETE = answer

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def serving(ready, port=0):
    with HTTPServer(("127.0.0.1", port), Handler) as http:
        http.seen, http.ready, http.role = [], ready, ""
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        try:
            yield http
        finally:
            http.shutdown()
            thread.join()


@pytest.fixture
def server():
    with serving((200, b"{}")) as http:
        yield http


@pytest.fixture
def client(server):
    with RestClient(f"http://127.0.0.1:{server.server_port}/") as made:
        yield made


def test_a_job_is_submitted_as_bytes_with_its_flags(server, client):
    server.ready = (202, b'{"jobid": "7"}')
    assert client.submit(b"\x00graph", token="t/1", from_uri="s3://b/a c", claim=False, accept_duplicates=True) == "7"
    digest = hashlib.sha256(b"\x00graph").hexdigest()
    query = f"token=t%2F1&claim=false&accept-duplicates=true&from=s3%3A%2F%2Fb%2Fa+c&sha256={digest}"
    assert server.seen == [("POST", f"/v1/penstock/submit?{query}", b"\x00graph")]


def test_other_requests(server, client):
    client.cancel("7")
    server.ready = (202, b'{"request-id": "r"}')
    assert client.stop("7", drain=True) == "r"
    server.ready = (202, b"")
    client.shutdown()
    assert [(m, p) for m, p, _ in server.seen] == [
        ("PATCH", "/v1/jobs/7?mode=cancel"), ("POST", "/v1/jobs/7/stop"), ("DELETE", "/v1/cluster"),
    ]  # fmt: skip
    assert json.loads(server.seen[1][2]) == {"drain": True, "targetDirectory": None}


@pytest.mark.parametrize("page", [b"<!doctype html><title>Another service</title>", b"\xff", b"[]", b'"pong"'])
def test_what_another_service_answers_is_one_error(server, client, page):
    server.ready = (200, page)
    with pytest.raises(PenstockError, match=rf"http://127.0.0.1:{server.server_port} is not a JobManager"):
        client.overview()


@pytest.mark.parametrize("page", [b"", b"<html>no such page</html>", b'{"detail": "Not Found"}'])
@pytest.mark.parametrize("status", [403, 404, 409])
def test_what_another_service_refuses_is_no_refusal_of_a_jobmanager(server, client, status, page):
    """A proxy without its JobManager must not say that there is no such job."""
    server.ready = (status, page)
    with pytest.raises(PenstockError, match=rf"is not a JobManager: another service answers {status}") as raised:
        client.job("7")
    assert type(raised.value) is PenstockError


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("order totals", "order%20totals"),
        ("bestellungen-\u00fc", "bestellungen-%C3%BC"),
        ("a?b#c", "a%3Fb%23c"),
        ("50%", "50%25"),
    ],
)
def test_a_job_may_have_any_name(server, client, name, sent):
    client.job(name)
    client.job_after(name, 5)
    client.cancel(name)
    server.ready = (200, b'{"states": []}')
    client.states(name)
    assert [path for _, path, _ in server.seen] == [
        f"/v1/jobs/{sent}", f"/v1/penstock/jobs/{sent}/wait?ms=5", f"/v1/jobs/{sent}?mode=cancel",
        f"/v1/penstock/jobs/{sent}/state",
    ]  # fmt: skip


def test_a_token_is_flinks_trigger_id(server, client):
    server.ready = (202, b'{"request-id": "r"}')
    client.stop("7", token="ab" * 16)
    client.savepoint("7", "s3://b/a", token="ab" * 16)
    assert [json.loads(body)["triggerId"] for _, _, body in server.seen] == ["ab" * 16] * 2


@pytest.mark.parametrize(
    ("status", "data", "kind", "text"),
    [
        (404, b'{"errors": ["no job 7"]}', NotFoundError, "no job 7"),
        (409, b'{"errors": ["taken"]}', JobIdentityError, "taken"),
        (400, b'{"errors": []}', UsageError, "errors"),
        (500, b"not JSON", PenstockError, r"http://.* answers 500 Internal Server Error: not JSON"),
        (502, b"[1]", PenstockError, r"http://.* answers 502 Bad Gateway: \[1\]"),
    ],
)
def test_errors(server, client, status, data, kind, text):
    server.ready = (status, data)
    with pytest.raises(kind, match=text) as raised:
        client.overview()
    assert type(raised.value) is kind


def test_nobody_there(server):
    port = server.server_port
    server.shutdown()
    server.server_close()
    with pytest.raises(PenstockError, match=f"no JobManager answers at http://127.0.0.1:{port}"):
        RestClient(f"http://127.0.0.1:{port}").jobs()


def test_a_silent_jobmanager_is_told_once_and_is_no_reason_to_start_another(caplog):
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the kernel accepts for a suspended process
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        client = RestClient(url, timeout_seconds=0.2, quiet_seconds=0.01)
        for _ in range(2):
            with pytest.raises(PenstockError) as raised:
                client.overview()
    message = f"no JobManager answers at {url}: it accepts connections but has not answered for 0.2 s"
    assert raised.value.message == message
    assert raised.value.hint == "it may be suspended or overloaded: check its process and its log"
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == f"waiting for {url}, which accepts the connection but does not answer; for 0 s at most"


@pytest.mark.parametrize(
    ("ask", "does"),
    [
        (lambda client: client.savepoint("7", "s3://bucket/x"), "it tests whether s3://bucket/x can be written"),
        (lambda client: client.submit(b"", places=["topic t at b:9092"]), "it checks topic t at b:9092"),
    ],
)
def test_a_jobmanager_that_waits_for_an_external_system_is_not_blamed_first(caplog, ask, does):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        client = RestClient(url, timeout_seconds=0.2, quiet_seconds=0.01)
        with pytest.raises(PenstockError) as raised:
            ask(client)
    assert raised.value.message == f"no answer from the JobManager at {url} within 0.2 s: {does}"
    assert raised.value.hint.startswith("check that this place answers; if it does, the JobManager may be suspended")
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == f"waiting for {url}: {does}; for 0 s at most"


@pytest.mark.parametrize(("tries", "answered"), [(3, True), (0, False)])
def test_a_refused_request_is_sent_again_as_long_as_the_caller_wants(unused_port, tries, answered):
    left, back = [tries], contextlib.ExitStack()

    def retry(refusals):
        assert refusals == tries - left[0]
        left[0] -= 1
        if left[0] == 0:  # the JobManager is back
            back.enter_context(serving((200, b"{}"), unused_port))
        return left[0] >= 0

    client = RestClient(f"http://127.0.0.1:{unused_port}", retry=retry)
    with back:
        if answered:
            assert client.overview() == {}
            assert left == [0]
        else:
            with pytest.raises(PenstockError, match="no JobManager answers"):
                client.overview()


@pytest.fixture
def another():
    """A second JobManager: a standby until the test says otherwise."""
    with serving((503, b'{"errors": ["a standby, no leader"]}')) as http:
        yield http


def url_of(server):
    return f"http://127.0.0.1:{server.server_port}"


def test_another_jobmanager_is_asked_when_one_refuses_or_knows_no_leader(server, another, unused_port):
    server.ready = (200, b'{"jobs": []}')
    urls = [f"http://127.0.0.1:{unused_port}", url_of(another), url_of(server)]
    with RestClient(",".join(urls)) as client:
        assert client.jobs() == []
        assert (client.url, len(another.seen)) == (url_of(server), 1)
        assert client.jobs() == []
        assert len(another.seen) == 1, "the one that answered is not asked first"


@pytest.mark.parametrize("led", [True, False])
def test_what_a_standby_shows_counts_only_while_nobody_leads(server, another, led):
    another.ready, another.role = (200, b'{"jobs": [{"state": "SUSPENDED"}]}'), "standby"
    server.ready = (200, b'{"jobs": [{"state": "RUNNING"}]}') if led else (503, b'{"errors": ["no leader"]}')
    with RestClient(f"{url_of(another)},{url_of(server)}") as client:
        assert [job["state"] for job in client.jobs()] == ["RUNNING" if led else "SUSPENDED"]
        assert client.url == url_of(server if led else another)
        client.jobs()
    assert len(another.seen) == (1 if led else 2), "the one that leads is asked first"


def test_without_a_leader_the_request_is_sent_again_and_at_last_refused(another):
    retries = []
    with RestClient(url_of(another), retry=lambda refusals: not retries.append(refusals) and refusals < 2) as client:
        with pytest.raises(PenstockError, match=r"no JobManager leads at \S+: a standby, no leader"):
            client.cancel("7")
        assert (retries, len(another.seen)) == ([0, 1, 2], 3)


@pytest.mark.parametrize("refused_first", [True, False])
def test_a_standby_says_more_than_a_refused_connection(another, unused_port, refused_first):
    urls = [f"http://127.0.0.1:{unused_port}", url_of(another)]
    client = RestClient(",".join(urls if refused_first else urls[::-1]))
    with client, pytest.raises(PenstockError, match=r"no JobManager leads at \S+: a standby, no leader"):
        client.overview()


def test_the_leader_of_an_ha_root_is_found_again(server, another, tmp_path):
    another.ready = server.ready = (200, b'{"jobs": []}')
    store, holder = open_store(str(tmp_path)), LeaseHolder(id="root", host="h", machine="", pid=1)
    lead = lambda place, above: take_lead(
        store, LeaderLease(generation=0, jobmanager_id=str(above), holder=holder, rest=place, rpc="h:1"), above
    )
    lead(url_of(server), 0)
    with RestClient(str(tmp_path)) as client:
        client.jobs()
        lead(url_of(another), 1)
        client.jobs()
    assert (len(server.seen), len(another.seen)) == (1, 1)


def test_a_redirect_of_a_standby_is_followed(server, another):
    server.ready = (200, b'{"jobs": []}')
    another.ready, another.location = (307, b"{}"), f"{url_of(server)}/v1/jobs/overview"
    with RestClient(url_of(another)) as client:
        assert client.jobs() == []
    assert [path for _, path, _ in server.seen] == ["/v1/jobs/overview"]


def test_what_may_have_been_received_is_not_sent_to_another(server, another):
    """A connection that breaks after the request: only the caller knows whether it may be sent twice."""
    server.ready = None
    with RestClient(f"{url_of(server)},{url_of(another)}") as client, pytest.raises(PenstockError):
        client.cancel("7")
    assert (len(server.seen), len(another.seen)) == (1, 0)
