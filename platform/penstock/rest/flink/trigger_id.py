"""Flink's `triggerId`: the client's id of a savepoint or stop request, which makes it safe to repeat."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from penstock.core.errors import UsageError

_FORM = re.compile(r"[0-9a-f]{32}")


def trigger_id(body: Mapping[str, Any]) -> str:
    """Return the id in a request's body; if it is empty, the JobManager creates one. Raises UsageError."""
    given = body.get("triggerId") or ""
    if not isinstance(given, str) or (given and not _FORM.fullmatch(given)):
        raise UsageError(f"triggerId {given!r} is invalid", hint="send 32 hex digits in lower case, or nothing")
    return given
