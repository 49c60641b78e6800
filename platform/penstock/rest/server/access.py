"""Access control of the REST API: the role that a request needs, and whether its sender has it; decisions only.

`viewer` reads. `operator` also acts on running jobs (cancel, stop, savepoint, checkpoint, rescale). `admin` also
submits code (submit, upgrade, upload), deletes savepoints and ends the cluster. Any other request needs `admin`.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from penstock.config.security import ROLES, Role, Security, is_loopback

_READING = ("GET", "HEAD", "OPTIONS")
_JOB = r"(?:/v1)?(?:/penstock)?/jobs/[^/]+"
_OPERATING = re.compile(
    rf"(?:PATCH {_JOB}(?:/rescaling)?"
    rf"|POST {_JOB}/(?:stop|savepoints|checkpoints)"
    rf"|PUT {_JOB}/resource-requirements"
    r"|POST (?:/v1)?/applications/[^/]+/cancel)/?"
)
_SEGMENTS = re.compile(r"[/\\]")
_LOWEST_PRINTED = 32
_DELETE = 127
_LARGE_BYTES = (64 << 20) + (1 << 20)
_SMALL_BYTES = 1 << 20

#: (host, port) of client and server.
Endpoints = tuple[tuple[str, int], tuple[str, int]]


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The fields of a request that the decision depends on."""

    method: str
    path: str
    #: Header names in lower case.
    headers: dict[str, str]
    #: Client and server address; None if unknown.
    ends: Endpoints | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """The response to a refused request."""

    status: int
    error: str
    headers: tuple[tuple[bytes, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of an accepted request; without tokens the user of the machine."""

    role: Role = "admin"
    #: Name in the tokens file; empty without tokens.
    name: str = ""

    def has_role(self, needed: Role) -> bool:
        """Return whether the caller's role includes `needed`."""
        return ROLES.index(self.role) >= ROLES.index(needed)


def required_role(method: str, path: str) -> Role:
    """Return the lowest role that may send this request."""
    if method in _READING:
        return "viewer"
    return "operator" if _OPERATING.fullmatch(f"{method} {path}") else "admin"


def body_limit(method: str, path: str) -> int:
    """Return the body size limit of such a request in bytes; it is large only for requests that submit code."""
    return _LARGE_BYTES if required_role(method, path) == "admin" else _SMALL_BYTES


def check_request(head: RequestHead, security: Security, same_user: Callable[[Endpoints], bool]) -> Refusal | None:
    """Return why a request is refused, or None.

    `same_user` returns whether the client end of a connection belongs to this process's user.
    """
    if (crooked := _malformed_path(head.path)) is not None:
        return Refusal(400, f"the path {head.path!r} {crooked} (send it as the API documents it)")
    if security.tokens:
        return _by_token(head, security)
    if (foreign := _cross_site(head)) is not None:
        return foreign
    if security.insecure:
        return None
    if not is_loopback(_host_name(head.headers.get("host", ""))):
        hint = "use 127.0.0.1 or localhost, or add tokens: `penstock cluster certs`"
        return Refusal(
            403, f"this cluster accepts local requests only, not for host {head.headers.get('host')!r} ({hint})"
        )
    if head.ends is None or not same_user(head.ends):
        hint = "add tokens: `penstock cluster certs DIR`, then --security DIR"
        return Refusal(403, f"without tokens this cluster accepts requests only from the user that started it ({hint})")
    return None


def caller(head: RequestHead, security: Security) -> Caller:
    """Return the sender of an accepted request."""
    entry = security.role_of(_token_of(head.headers.get("authorization", ""))[0]) if security.tokens else None
    return Caller(entry.role, entry.name) if entry is not None else Caller()


def _by_token(head: RequestHead, security: Security) -> Refusal | None:
    token, from_a_browser = _token_of(head.headers.get("authorization", ""))
    if not token:
        ways = ((b"www-authenticate", b'Bearer realm="penstock"'), (b"www-authenticate", b'Basic realm="penstock"'))
        hint = "clients read it from PENSTOCK_TOKEN_FILE or PENSTOCK_TOKEN, browsers send it as the password"
        return Refusal(401, f"this cluster requires a token ({hint})", ways)
    entry = security.role_of(token)
    if entry is None:
        way = b'Basic realm="penstock"' if from_a_browser else b'Bearer realm="penstock", error="invalid_token"'
        return Refusal(
            401,
            "the token is not valid for this cluster (it may have been replaced: ask the cluster's administrator)",
            ((b"www-authenticate", way),),
        )
    needed = required_role(head.method, head.path)
    if ROLES.index(entry.role) < ROLES.index(needed):
        error = f"{entry.name} is {entry.role}, but {head.method} {head.path} needs {needed} (use a token of that role)"
        return Refusal(403, error)
    # A browser adds the password to requests that a foreign page triggers; a script sends it deliberately.
    return _cross_site(head) if from_a_browser else None


def _token_of(header: str) -> tuple[str, bool]:
    """Return the token of an Authorization header, and whether it is a browser's (the password of Basic)."""
    scheme, _, value = header.strip().partition(" ")
    if scheme.lower() == "bearer":
        return value.strip(), False
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value.strip(), validate=True).decode().partition(":")[2], True
        except (binascii.Error, UnicodeDecodeError):
            return "", True
    return "", False


def _cross_site(head: RequestHead) -> Refusal | None:
    """Refuse a request that a page of another site made a browser send."""
    if head.method in _READING:
        return None
    origin, host = head.headers.get("origin"), head.headers.get("host", "")
    if head.headers.get("sec-fetch-site") in {"cross-site", "same-site"} or (
        origin is not None and urlsplit(origin).netloc.lower() != host.lower()
    ):
        return Refusal(403, f"a page of {origin or 'another site'} may not act here (use the cluster's own page)")
    return None


def _malformed_path(path: str) -> str | None:
    if any(ord(letter) < _LOWEST_PRINTED or ord(letter) == _DELETE for letter in path):
        return "contains control characters"
    if any(part in {".", ".."} for part in _SEGMENTS.split(path)):
        return "leaves its folder"
    return "has empty parts" if "//" in path else None


def _host_name(host: str) -> str:
    """Return a Host header without its port."""
    if host.startswith("["):
        return host.partition("]")[0].removeprefix("[")
    return host.partition(":")[0].lower()
