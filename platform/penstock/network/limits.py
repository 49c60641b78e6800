"""`NetworkLimits`: how long a worker waits for others, and for how many; given to `connection.WorkerNetwork`.

The defaults are those of production; tests give shorter times and fewer connections.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkLimits:
    """Times and counts; immutable."""

    #: How long the lower id tries to reach the other, and how long the other waits for it.
    connect_deadline_ms: float = 10_000
    accept_deadline_ms: float = 30_000
    #: How long one who has connected may take to prove who it is, and how many are waited for.
    greeting_deadline_ms: float = 10_000
    most_strangers: int = 256


DEFAULT_LIMITS = NetworkLimits()
