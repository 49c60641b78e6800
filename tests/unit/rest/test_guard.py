"""What stands before the API: bodies within their limits of size and time, one clear error, nothing of it passed on."""

import asyncio
import json

import pytest

from penstock.config.security import Security, TokenEntry, token_digest
from penstock.rest.server.guard import BodyTimeouts, Guard

SECURITY = Security(
    tokens=(TokenEntry("admin", "me", token_digest("t" * 32)), TokenEntry("operator", "ops", token_digest("o")))
)
TIMES = BodyTimeouts(piece=0.05, whole=0.2, linger=0.1)


class Application:
    """Takes the body and says so."""

    def __init__(self):
        self.seen = []

    async def __call__(self, scope, receive, send):
        message = await receive()
        self.seen.append((scope["method"], scope["path"], message["body"]))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": b"done"})


async def pause(seconds):
    """Let the time of the event loop go on by so much; what is due then happens at once."""
    loop = asyncio.get_running_loop()
    later = loop.time() + seconds
    loop.time = lambda: later
    for _ in range(3):
        await asyncio.sleep(0)


async def ask(parts, *, token="t" * 32, method="POST", path="/v1/penstock/submit", headers=(), times=TIMES):
    """Send pieces (a number: wait so long); return status, answer, what the application saw, the log."""
    parts, sent, log, application = list(parts), [], [], Application()

    async def receive():
        if parts and isinstance(parts[0], float):
            await pause(parts.pop(0))
        if not parts:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http", "method": method, "path": path, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
        "headers": [(b"host", b"h"), (b"authorization", f"Bearer {token}".encode()), *headers],
    }  # fmt: skip
    await Guard(application, SECURITY, log.append, times)(scope, receive, send)
    text = b"".join(m.get("body", b"") for m in sent[1:])
    return sent[0], text, application.seen, log


async def test_what_is_let_in_arrives_whole():
    start, text, seen, log = await ask([b"gr", 0.01, b"aph"], times=BodyTimeouts(piece=20, whole=20))
    assert (start["status"], text) == (200, b"done")
    assert seen == [("POST", "/v1/penstock/submit", b"graph")]
    assert log == ["me at 127.0.0.1: POST '/v1/penstock/submit'"]
    assert (await ask([], method="GET", path="/jobs"))[3] == [], "questions are not noted"
    assert (b"x-frame-options", b"DENY") in start["headers"]


@pytest.mark.parametrize(
    ("parts", "options", "status"),
    [
        ([b"x"], {"token": "wrong"}, 401),
        ([b"x"], {"token": "o"}, 403),
        ([b"x"], {"headers": [(b"content-length", b"999999999999")]}, 413),
        ([b"x"], {"headers": [(b"content-length", b"-5")]}, 413),
        ([b"x" * (40 << 20)] * 2, {}, 413),
        ([b"x" * (1 << 20), b"x"], {"token": "o", "path": "/jobs/1/stop"}, 413),
        ([b"x", 1.0, b"x"], {}, 408),
        ([b"x", *[0.03, b"x"] * 20], {}, 408),
        ([1.0, b"x"], {}, 408),
        ([], {}, 400),
        ([b"x"], {"path": "/v1/../etc"}, 400),
    ],
)
async def test_what_is_refused_never_gets_in(parts, options, status):
    start, text, seen, log = await ask(parts, **options)
    assert start["status"] == status
    assert not seen
    (error,) = json.loads(text)["errors"]
    assert error.endswith(")"), "it names a way out"
    assert (b"connection", b"close") in start["headers"]
    assert len(log) == 1


async def test_a_refused_token_is_not_in_the_log():
    token = "0123456789abcdef" * 2
    start, text, _seen, log = await ask([b"x"], token=token, path=f"/x/Bearer {token}")
    assert start["status"] == 401
    assert token not in text.decode() + log[0]


@pytest.mark.parametrize(("token", "status"), [("wrong", 401), ("t" * 32, 200)])
async def test_a_long_path_is_a_short_line_of_the_log(token, status):
    start, _text, _seen, log = await ask([b"x"], token=token, path="/" + "a" * 60_000)
    assert start["status"] == status
    assert len(log[0]) < 500
    assert "POST '/aaaa" in log[0]
