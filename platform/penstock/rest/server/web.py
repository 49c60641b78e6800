"""Serves the web interface's files from `rest/server/ui`: no build step, no external resources.

Added to the application by `rest.server.app`. The content policy lets our pages load scripts, styles and data only from
this server. It forbids inline scripts and framing by other sites.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import Request
from fastapi.responses import RedirectResponse, Response

from penstock.core.errors import NotFoundError

if TYPE_CHECKING:
    from fastapi import FastAPI

FOLDER = Path(__file__).parent / "ui"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    # Revalidated at each request, with 304 if unchanged: a page never mixes files of two versions.
    "Cache-Control": "no-cache",
}


def add_routes(app: FastAPI) -> None:
    """Serve `/`, `/ui/...` and `/docs`."""
    # Only files found at the start are served: no path of a request reaches the file system.
    files = {path.name: path for path in sorted(FOLDER.iterdir()) if path.suffix in _TYPES}

    @app.get("/", include_in_schema=False)
    async def root() -> Response:
        return RedirectResponse("ui/", status_code=307)

    @app.get("/ui/{name}", include_in_schema=False)
    @app.get("/ui/", include_in_schema=False)
    async def file(request: Request, name: str = "index.html") -> Response:
        path = files.get(name)
        if path is None:
            msg = f"the web interface has no file {name!r}"
            raise NotFoundError(msg, hint="start at /ui/")
        return _answer(path, request)

    @app.get("/docs", include_in_schema=False)
    async def operations(request: Request) -> Response:
        return _answer(FOLDER / "operations.html", request)


def _answer(path: Path, request: Request) -> Response:
    content = path.read_bytes()
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    headers = {**_HEADERS, "ETag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=_TYPES[path.suffix], headers=headers)
