"""`JobManagerLimits`: timeouts, retries and retention of a JobManager; passed to `main.JobManager`.

The defaults are for production; tests set shorter times.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class JobManagerLimits:
    """Times and counts; immutable."""

    #: Interval between tries to start a recorded job, and their number.
    recover_retry_ms: int = 2_000
    recover_tries: int = 30
    #: How long a verdict on an upgrade may take to become durable before the caller gets an error.
    verdict_ms: int = 20_000
    #: Number of ended jobs whose last run is still shown in full.
    kept_ended: int = 50


DEFAULT_LIMITS = JobManagerLimits()
