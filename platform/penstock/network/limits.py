"""`NetworkLimits`: how long a worker waits for others, and for how many; passed to `connection.WorkerNetwork`.

The defaults are for production; tests use shorter times and fewer connections.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkLimits:
    """Times and counts; immutable."""

    #: Time in which the worker with the lower id tries to connect, and for which the other waits.
    connect_deadline_ms: float = 10_000
    accept_deadline_ms: float = 30_000
    #: Time for a peer to prove its identity, and the largest number of such peers.
    greeting_deadline_ms: float = 10_000
    most_strangers: int = 256


DEFAULT_LIMITS = NetworkLimits()
