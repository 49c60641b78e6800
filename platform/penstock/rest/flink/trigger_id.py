"""Flink's `triggerId`: the id that a client gives its request for a savepoint or stop, so that it can be sent again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from penstock.core.errors import UsageError

_FORM = re.compile(r"[0-9a-f]{32}")


def trigger_id(body: Mapping[str, Any]) -> str:
    """Return the id in a request's body; empty: the JobManager makes one. Raises UsageError."""
    given = body.get("triggerId") or ""
    if not isinstance(given, str) or (given and not _FORM.fullmatch(given)):
        raise UsageError(f"triggerId {given!r} is none", hint="send 32 hex digits in lower case, or nothing")
    return given
