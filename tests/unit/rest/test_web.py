"""The web interface's files: served as they are, under a policy that lets a page load nothing from elsewhere."""

import functools
import re
from html.parser import HTMLParser

import pytest
from tests.unit.rest.test_fast_app import Dispatcher

from penstock.core.clock import ManualClock
from penstock.rest.server.app import create_app
from penstock.rest.server.web import FOLDER

FILES = sorted(path.name for path in FOLDER.iterdir())


@functools.cache
def application():
    """Return the application, which is made once: pages are the same whoever asks."""
    return create_app(Dispatcher(), ManualClock(), lambda: None)


async def get(path, headers=()):
    """Return status, headers and body of one request."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "path": path,
        "raw_path": path.encode(), "root_path": "", "scheme": "http", "query_string": b"", "headers": list(headers),
        "client": ("127.0.0.1", 1), "server": ("x", 80),
    }  # fmt: skip
    await application()(scope, receive, send)
    found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], found, b"".join(message.get("body", b"") for message in sent[1:])


@pytest.mark.parametrize("name", FILES)
async def test_every_file_is_served_with_its_type_and_the_policy(name):
    status, headers, body = await get(f"/ui/{name}")
    assert (status, body) == (200, (FOLDER / name).read_bytes())
    kinds = {"js": "text/javascript", "css": "text/css", "html": "text/html", "svg": "image/svg+xml"}
    assert headers["content-type"].partition(";")[0] == kinds[name.rpartition(".")[2]]
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self';")
    assert "unsafe" not in policy
    assert (await get(f"/ui/{name}", [(b"if-none-match", headers["etag"].encode())]))[0] == 304


async def test_the_way_in():
    status, headers, _ = await get("/")
    assert (status, headers["location"]) == (307, "ui/")
    assert (await get("/ui/"))[2] == (FOLDER / "index.html").read_bytes()


@pytest.mark.parametrize("path", ["/ui/web.py", "/ui/..%2fweb.py", "/ui/../web.py", "/ui/none.js", "/ui/ui/main.js"])
async def test_nothing_else_is_served(path):
    assert (await get(path))[0] == 404


async def test_the_list_of_operations_loads_nothing_from_elsewhere():
    status, headers, body = await get("/docs")
    assert status == 200
    assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")
    parts = _Parts()
    parts.feed(body.decode())
    assert not parts.inline
    assert set(parts.refers) == {"ui/icon.svg", "ui/style.css", "ui/operations.js", "openapi.json"}
    for path in (f"/{name}" for name in parts.refers):
        assert (await get(path))[0] == 200
    assert (await get("/redoc"))[0] == 404


class _Parts(HTMLParser):
    """Collects what a page refers to, and what the policy would not run."""

    def __init__(self):
        super().__init__()
        self.refers, self.inline = [], []

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ("src", "href"):
                self.refers.append(value)
            if name == "style" or name.startswith("on"):
                self.inline.append((tag, name))


def test_files_refer_to_each_other_alone():
    parts = _Parts()
    parts.feed((FOLDER / "index.html").read_text(encoding="utf-8"))
    assert not parts.inline
    assert {name for name in parts.refers if not name.startswith("#")} <= set(FILES)
    for name in FILES:
        text = (FOLDER / name).read_text(encoding="utf-8")
        assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text), name
        if name.endswith(".js"):
            assert {found.removeprefix("./") for found in re.findall(r'from "([^"]+)"', text)} <= set(FILES)
            assert "innerHTML" not in text, "text from outside must never become elements"
            assert "eval(" not in text
