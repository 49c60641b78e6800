"""Restart strategies: whether a failed job starts again, and after how long; pure, names and meanings as Flink's.

`RestartPolicy` is used by `jobmanager.master.job_master`, one per job; chance (jitter) is handed in.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from penstock.checkpoint.manifest import Manifest
from penstock.config.settings import RestartStrategy
from penstock.jobmanager.deploy.failover import Cause


class RestartDecider(Protocol):
    """Decides after each failure."""

    def on_failure(self, now_ms: int, chance: float) -> int | None:
        """Return the delay before the restart in ms, or None when the job fails for good; `chance` is in [0, 1)."""


class FixedDelay:
    """At most `attempts` restarts, each after the same delay."""

    def __init__(self, settings: RestartStrategy) -> None:
        """Take `attempts` and `delay_ms`."""
        self._settings = settings
        self._failures = 0

    def on_failure(self, now_ms: int, chance: float) -> int | None:  # noqa: ARG002 - the protocol's signature
        """Count."""
        self._failures += 1
        return None if self._failures > self._settings.attempts else self._settings.delay_ms


class ExponentialDelay:
    """The delay grows with each failure and is reset after a quiet time; at most `attempts` in a row."""

    def __init__(self, settings: RestartStrategy) -> None:
        """Take all delays and the jitter."""
        self._settings = settings
        self._failures = 0
        self._quiet_from_ms = 0

    def on_failure(self, now_ms: int, chance: float) -> int | None:
        """Grow, or begin again."""
        settings = self._settings
        if self._failures and now_ms - self._quiet_from_ms >= settings.reset_after_ms:
            self._failures = 0
        self._failures += 1
        if self._failures > settings.attempts:
            return None
        # Capped in the exponent as well: a long row of failures must not overflow the float.
        exponent = min(self._failures - 1, 64)
        delay = min(settings.delay_ms * settings.backoff_multiplier**exponent, float(settings.max_delay_ms))
        delay *= 1 + settings.jitter * (2 * chance - 1)
        self._quiet_from_ms = now_ms + int(delay)
        return int(delay)


class FailureRate:
    """At most so many failures within an interval."""

    def __init__(self, settings: RestartStrategy) -> None:
        """Take the rate and `delay_ms`."""
        self._settings = settings
        self._failures: deque[int] = deque()

    def on_failure(self, now_ms: int, chance: float) -> int | None:  # noqa: ARG002 - the protocol's signature
        """Count what lies within the interval."""
        self._failures.append(now_ms)
        while self._failures and self._failures[0] <= now_ms - self._settings.rate_interval_ms:
            self._failures.popleft()
        too_many = len(self._failures) > self._settings.max_failures_per_interval
        return None if too_many else self._settings.delay_ms


class NoRestart:
    """The first failure is the last."""

    def on_failure(self, now_ms: int, chance: float) -> int | None:  # noqa: ARG002 - the protocol's signature
        """Never."""
        return None


def restart_decider(settings: RestartStrategy) -> RestartDecider:
    """Return the decider for the job's settings."""
    if settings.kind == "fixed-delay":
        return FixedDelay(settings)
    if settings.kind == "exponential-delay":
        return ExponentialDelay(settings)
    if settings.kind == "failure-rate":
        return FailureRate(settings)
    return NoRestart()


class RestartPolicy:
    """The strategy of a job, and what the cause of a failure means for it."""

    def __init__(self, settings: RestartStrategy, *, proven: bool = False) -> None:
        """`proven`: this run has completed a checkpoint before."""
        self._decider = restart_decider(settings)
        self._settings = settings
        #: Failures of user code in a row, and when the job ran again after the last one.
        self._of_user_code, self._again_ms = 0, 0
        self._checkpointed = False
        self.proven = proven

    def checkpointed(self) -> None:
        """A checkpoint of this run is complete: its functions have worked, on all input up to there."""
        self.proven = self._checkpointed = True

    def resumed(self, restored: Manifest | None, run_id: str) -> None:
        """A deployment starts from `restored`: a checkpoint of this run proves its functions, whoever led it."""
        self.proven = self.proven or (restored is not None and restored.run_id == run_id)

    def on_failure(self, cause: Cause, now_ms: int, chance: float) -> int | None:
        """Return the delay before the restart in ms, or None when the job fails for good; `chance` is in [0, 1).

        A strategy that counts restarts by itself, such as `fixed-delay`, counts those after an error of user code too.
        """
        if cause is Cause.PERMANENT:
            return None
        hopeless = cause is Cause.USER_CODE and self._settings.kind == "exponential-delay" and self._repeats(now_ms)
        delay = None if hopeless else self._decider.on_failure(now_ms, chance)
        self._again_ms = now_ms + (delay or 0)
        return delay

    def _repeats(self, now_ms: int) -> bool:
        """Count a failure of user code; return whether there are too many.

        A checkpoint alone begins no new row: after a restart one may be complete before the row that fails is read.
        """
        if self._checkpointed and now_ms - self._again_ms >= self._settings.reset_after_ms:
            self._of_user_code = 0
        self._of_user_code += 1
        self._checkpointed = False
        return not self.proven or self._of_user_code > self._settings.user_code_attempts
