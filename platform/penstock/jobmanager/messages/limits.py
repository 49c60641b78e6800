"""`JobManagerLimits`: how long and how often a JobManager tries, and what it keeps; given to `main.JobManager`.

The defaults are those of production; tests give shorter times.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class JobManagerLimits:
    """Times and counts; immutable."""

    #: Between two tries to begin a job that is recorded, and how many there are.
    recover_retry_ms: int = 2_000
    recover_tries: int = 30
    #: How long a verdict on an upgrade may take to become durable before its sender gets an error.
    verdict_ms: int = 20_000
    #: Ended jobs whose last run is still shown in full.
    kept_ended: int = 50


DEFAULT_LIMITS = JobManagerLimits()
