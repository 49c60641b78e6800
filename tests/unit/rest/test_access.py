"""Who may send which request: by token and role, or by the user who holds the connection."""

import base64

import pytest

from penstock.config.security import Security, TokenEntry, token_digest
from penstock.rest.server.access import RequestHead, body_limit, check_request, required_role

ENDS = (("127.0.0.1", 5), ("127.0.0.1", 8081))
TOKENS = Security(
    tokens=tuple(TokenEntry(role, f"a-{role}", token_digest(role)) for role in ("viewer", "operator", "admin"))
)
JOB = "1" * 32


def bearer(token):
    return {"host": "h", "authorization": f"Bearer {token}"}


def basic(token, **more):
    return {"host": "h:1", "authorization": "Basic " + base64.b64encode(f"me:{token}".encode()).decode(), **more}


def status(method, path, headers, security=TOKENS, ends=ENDS, same=True):
    refusal = check_request(RequestHead(method, path, headers, ends), security, lambda _ends: same)
    return 200 if refusal is None else refusal.status


@pytest.mark.parametrize(
    ("method", "path", "role"),
    [
        ("GET", "/v1/jobs/overview", "viewer"),
        ("GET", "/metrics", "viewer"),
        ("PATCH", f"/v1/jobs/{JOB}", "operator"),
        ("PATCH", f"/jobs/{JOB}", "operator"),
        ("POST", f"/v1/jobs/{JOB}/stop", "operator"),
        ("POST", f"/jobs/{JOB}/savepoints", "operator"),
        ("POST", f"/jobs/{JOB}/checkpoints", "operator"),
        ("PATCH", f"/v1/jobs/{JOB}/rescaling", "operator"),
        ("PUT", f"/v1/jobs/{JOB}/resource-requirements", "operator"),
        ("POST", "/v1/savepoint-disposal", "admin"),
        ("POST", f"/applications/{JOB}/cancel", "operator"),
        ("POST", "/v1/penstock/submit", "admin"),
        ("DELETE", "/v1/cluster", "admin"),
        ("POST", f"/v1/penstock/jobs/{JOB}/upgrade", "admin"),
        ("POST", "/jars/upload", "admin"),
        ("POST", f"/v1/jobs/{JOB}/stop/../../../cluster", "admin"),
        ("TRACE", "/", "admin"),
    ],
)
def test_what_is_not_known_needs_an_admin(method, path, role):
    assert required_role(method, path) == role


#: docs/how-to/secure.md, by the routes there are.
ROLE_OF = {
    "PATCH /jobs/{job_id}": "operator",
    "POST /applications/{job_id}/cancel": "operator",
    "POST /jobs/{job_id}/stop": "operator",
    "POST /jobs/{job_id}/savepoints": "operator",
    "POST /jobs/{job_id}/checkpoints": "operator",
    "PATCH /jobs/{job_id}/rescaling": "operator",
    "PUT /jobs/{job_id}/resource-requirements": "operator",
    "POST /savepoint-disposal": "admin",
    "POST /penstock/submit": "admin",
    "POST /penstock/jobs/{job_id}/upgrade": "admin",
    "POST /penstock/jobs/{job_id}/upgrade/verdict": "admin",
    "DELETE /cluster": "admin",
    "DELETE /penstock/taskmanagers/{taskmanager_id}": "admin",
}


def test_every_route_that_changes_something_has_its_role():
    from penstock.core.clock import ManualClock
    from penstock.rest.server.app import create_app

    class Nobody:
        queries = None

    app = create_app(Nobody(), ManualClock(), None)
    changing = [
        (m, r.path) for r in app.routes for m in getattr(r, "methods", ()) if m not in {"GET", "HEAD", "OPTIONS"}
    ]
    found = {f"{m} {path.removeprefix('/v1')}": required_role(m, path.replace("{job_id}", JOB)) for m, path in changing}
    assert found == ROLE_OF
    assert len(changing) == 2 * len(ROLE_OF), "with the prefix and without"


@pytest.mark.parametrize(
    ("token", "seen"),
    [("viewer", (200, 403, 403)), ("operator", (200, 200, 403)), ("admin", (200, 200, 200)), ("other", (401, 401, 401)),
     ("", (401, 401, 401))],
)  # fmt: skip
def test_a_token_may_what_its_role_may(token, seen):
    asked = [("GET", "/jobs"), ("PATCH", f"/jobs/{JOB}"), ("DELETE", "/cluster")]
    assert tuple(status(method, path, bearer(token)) for method, path in asked) == seen


def test_nobody_without_a_token_though_it_is_the_same_user():
    assert status("GET", "/jobs", {"host": "127.0.0.1"}) == 401
    assert status("GET", "/jobs", {"host": "127.0.0.1", "authorization": "Basic !"}) == 401
    assert status("GET", "/jobs", {"host": "127.0.0.1", "authorization": "admin"}) == 401


def test_a_browser_sends_it_as_a_password_and_other_pages_may_not_use_it():
    assert status("DELETE", "/cluster", basic("admin", origin="https://h:1")) == 200
    assert status("DELETE", "/cluster", basic("admin")) == 200
    assert status("DELETE", "/cluster", basic("admin", origin="https://evil")) == 403
    assert status("DELETE", "/cluster", basic("admin", **{"sec-fetch-site": "cross-site"})) == 403
    assert status("GET", "/jobs", basic("admin", origin="https://evil")) == 200, "and nobody can read the answer"
    refusal = check_request(RequestHead("GET", "/", {}, ENDS), TOKENS, lambda _ends: True)
    assert (b"www-authenticate", b'Basic realm="penstock"') in refusal.headers


@pytest.mark.parametrize("host", ["127.0.0.1:8081", "localhost:8081", "[::1]:8081", "127.0.0.1", "LOCALHOST"])
def test_without_tokens_it_is_the_user_that_counts(host):
    for method in ("GET", "POST"):
        assert status(method, "/v1/penstock/submit", {"host": host}, Security()) == 200
        assert status(method, "/v1/penstock/submit", {"host": host}, Security(), same=False) == 403
        assert status(method, "/v1/penstock/submit", {"host": host}, Security(), ends=None) == 403


def test_without_tokens_pages_of_others_get_nothing():
    own = {"host": "127.0.0.1:8081", "origin": "http://127.0.0.1:8081"}
    assert status("POST", "/v1/penstock/submit", own, Security()) == 200
    for origin in ("http://evil", "http://127.0.0.1:3000", "null"):
        assert status("POST", "/v1/penstock/submit", {**own, "origin": origin}, Security()) == 403
    assert status("GET", "/jobs", {"host": "evil.example:8081"}, Security()) == 403, "a name that was bent to 127.0.0.1"
    assert status("GET", "/jobs", {}, Security()) == 403


def test_insecure_is_the_users_own_word():
    assert status("GET", "/jobs", {"host": "node7"}, Security(insecure=True), same=False) == 200
    assert status("POST", "/jobs", {"host": "n", "origin": "http://evil"}, Security(insecure=True), same=False) == 403


@pytest.mark.parametrize(
    "path", ["/jobs/../x", "/..", "/jobs/..", "/a\\..\\b", "/jobs//x", "/jobs/\n", "/jobs/\x00", "/./a"]
)
def test_paths_that_play_tricks(path):
    assert status("GET", path, bearer("admin")) == 400
    assert status("GET", path, {"host": "127.0.0.1"}, Security()) == 400


def test_only_code_may_be_large():
    assert body_limit("POST", "/v1/penstock/submit") > 64 << 20
    assert body_limit("POST", f"/jobs/{JOB}/stop") == 1 << 20
