"""Validation of fields in requests: whole numbers as text, and Flink's `triggerId`.

The `triggerId` is the client's id of a savepoint or stop request, which makes the request safe to repeat. Imported
by every route and by `rest.server.guard` at start, so it imports little.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from penstock.core.errors import UsageError

#: More digits than any count, size or time has.
_MOST_DIGITS = 15


def is_count(text: str) -> bool:
    """Return whether `text` is a whole number of usual size; unlike `"²".isdigit()`, `int` accepts it."""
    return text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS


def is_native(body: Mapping[str, Any]) -> bool:
    """Return whether a body asks for a native savepoint, by Flink's `formatType`. Raises UsageError."""
    given = body.get("formatType") or "CANONICAL"
    if given not in ("CANONICAL", "NATIVE"):
        raise UsageError(f"formatType {given!r} is unknown", hint="send CANONICAL or NATIVE")
    return bool(given == "NATIVE")


def is_unaligned(body: Mapping[str, Any]) -> bool | None:
    """Return the `unaligned` of a body that asks for a checkpoint; None: by the job's settings. Raises UsageError."""
    given = body.get("unaligned")
    if given is not None and not isinstance(given, bool):
        raise UsageError(f"unaligned {given!r} is no boolean", hint="send true or false, or nothing")
    return given


_FORM = re.compile(r"[0-9a-f]{32}")


def trigger_id(body: Mapping[str, Any]) -> str:
    """Return the id in a request's body; if it is empty, the JobManager creates one. Raises UsageError."""
    given = body.get("triggerId") or ""
    if not isinstance(given, str) or (given and not _FORM.fullmatch(given)):
        raise UsageError(f"triggerId {given!r} is invalid", hint="send 32 hex digits in lower case, or nothing")
    return given
