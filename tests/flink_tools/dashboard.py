"""Flink's dashboard out of its distribution, before our API: files come from the jar, the rest is passed on."""

from __future__ import annotations

import mimetypes
import threading
import urllib.error
import urllib.request
import zipfile
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.flink_tools.installation import dist_jar


@contextmanager
def dashboard(rest_url):
    """Serve it on a free port; gives its address and the requests that were passed on, as (method, path, status)."""
    passed = []
    with zipfile.ZipFile(dist_jar()) as jar:
        files = {name.removeprefix("web/"): jar.read(name) for name in jar.namelist() if name.startswith("web/")}

    class Handler(BaseHTTPRequestHandler):
        def answer(self):
            name = self.path.partition("?")[0].lstrip("/") or "index.html"
            if self.command == "GET" and files.get(name):
                self.send(200, mimetypes.guess_type(name)[0] or "application/octet-stream", files[name])
                return
            length = int(self.headers.get("Content-Length") or 0)
            request = urllib.request.Request(rest_url + self.path, method=self.command)
            if "Authorization" in self.headers:
                request.add_header("Authorization", self.headers["Authorization"])
            if length:
                request.data = self.rfile.read(length)
                request.add_header("Content-Type", self.headers.get("Content-Type", "application/json"))
            asks = []
            try:
                with urllib.request.urlopen(request, timeout=120) as found:
                    status, kind, body = found.status, found.headers.get("Content-Type", ""), found.read()
            except urllib.error.HTTPError as error:
                status, kind, body = error.code, error.headers.get("Content-Type", ""), error.read()
                asks = error.headers.get_all("WWW-Authenticate", [])
            passed.append((self.command, self.path, status))
            self.send(status, kind, body, asks)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

        def send(self, status, kind, body, asks=()):
            self.send_response(status)
            for way in asks:
                self.send_header("WWW-Authenticate", way)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with suppress(ConnectionError):  # a page that was left no longer listens
                self.wfile.write(body)

        def log_message(self, *_words):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", passed
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
