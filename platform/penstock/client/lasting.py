"""Long-running requests that survive restarts of the JobManager.

Used by `client.handle` for savepoint, stop and rescale, and by `client.upgrading`. A token identifies each operation,
so a request can be repeated safely.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any

from penstock.core.clock import Clock
from penstock.core.errors import NotFoundError, PenstockError

_TRIGGER_ID = re.compile(r"[0-9a-f]{32}")


def trigger_id_of(token: str) -> str:
    """Return a user's token in the format of Flink's trigger ids: 32 hex digits."""
    return token if _TRIGGER_ID.fullmatch(token) else hashlib.sha256(token.encode()).hexdigest()[:32]


def operation_of(
    ask: Callable[[], object], status: Callable[[], dict[str, Any]], clock: Clock, limit_ms: float, poll_ms: float
) -> dict[str, Any] | None:
    """Send a request and poll its status; return the completed operation, or None after `limit_ms`.

    Raises:
        PenstockError: the request was refused. While no JobManager answers, this function waits.
    """
    deadline, asked = clock.monotonic_ms() + limit_ms, False
    while clock.monotonic_ms() < deadline:
        try:
            if not asked:
                ask()
                asked = True
            answer = status()
        except NotFoundError:
            if not asked:
                raise
            asked = False  # a new JobManager without a record of the request: repeat it
        except PenstockError as error:
            if "no JobManager answers" not in error.message:
                raise
            clock.sleep_ms(poll_ms)
        else:
            if answer["status"]["id"] == "COMPLETED":
                operation: dict[str, Any] = answer["operation"]
                return operation
            clock.sleep_ms(poll_ms)
    return None
