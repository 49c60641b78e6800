"""Restart strategies: whether and when a failed job restarts; pure, with Flink's names.

`RestartPolicy` is used by `master.job_master`, one per job. The random number for the jitter is passed in.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Protocol

from penstock.checkpoint.manifest_log import Manifest
from penstock.config.settings import RestartStrategy
from penstock.core.errors import Cause

#: Error of a task that lost the connection to another worker.
_CONNECTION_LOST = "ConnectionLostError"
_PEER = re.compile(r"\bworker (\S+) ")


def lost_peer(error: str) -> str:
    """Return the worker at the other side, if an error text reports a lost connection; else an empty string."""
    peer = _PEER.search(error) if error.startswith(_CONNECTION_LOST) else None
    return peer[1] if peer else ""


class RestartDecider(Protocol):
    """Decides after each failure whether the job restarts."""

    def on_failure(self, now_ms: int, chance: float) -> int | None:
        """Return the delay before the restart in ms, or None if the job fails for good; `chance` is in [0, 1)."""


class FixedDelay:
    """Allows `attempts` restarts, each after the same delay."""

    def __init__(self, settings: RestartStrategy) -> None:
        """Use `attempts` and `delay_ms` of the settings."""
        self._settings = settings
        self._failures = 0

    def on_failure(self, now_ms: int, chance: float) -> int | None:  # noqa: ARG002 - the protocol's signature
        """Count the failure."""
        self._failures += 1
        return None if self._failures > self._settings.attempts else self._settings.delay_ms


class ExponentialDelay:
    """Increases the delay with each failure and resets it after a quiet time; at most `attempts` in a row."""

    def __init__(self, settings: RestartStrategy) -> None:
        """Use the delays and the jitter of the settings."""
        self._settings = settings
        self._failures = 0
        self._quiet_from_ms = 0

    def on_failure(self, now_ms: int, chance: float) -> int | None:
        """Increase the delay, or reset it after a quiet time."""
        settings = self._settings
        if self._failures and now_ms - self._quiet_from_ms >= settings.reset_after_ms:
            self._failures = 0
        self._failures += 1
        if self._failures > settings.attempts:
            return None
        # The exponent is capped too, to avoid a float overflow.
        exponent = min(self._failures - 1, 64)
        delay = min(settings.delay_ms * settings.backoff_multiplier**exponent, float(settings.max_delay_ms))
        delay *= 1 + settings.jitter * (2 * chance - 1)
        self._quiet_from_ms = now_ms + int(delay)
        return int(delay)


class FailureRate:
    """Allows a maximum number of failures per interval."""

    def __init__(self, settings: RestartStrategy) -> None:
        """Use the rate and `delay_ms` of the settings."""
        self._settings = settings
        self._failures: deque[int] = deque()

    def on_failure(self, now_ms: int, chance: float) -> int | None:  # noqa: ARG002 - the protocol's signature
        """Count the failures within the interval."""
        self._failures.append(now_ms)
        while self._failures and self._failures[0] <= now_ms - self._settings.rate_interval_ms:
            self._failures.popleft()
        too_many = len(self._failures) > self._settings.max_failures_per_interval
        return None if too_many else self._settings.delay_ms


class NoRestart:
    """Never restarts."""

    def on_failure(self, now_ms: int, chance: float) -> int | None:  # noqa: ARG002 - the protocol's signature
        """Return None: the job fails for good."""
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
    """The restart strategy of a job, adjusted by the cause of a failure."""

    def __init__(self, settings: RestartStrategy, *, proven: bool = False) -> None:
        """Use the settings; `proven` if this run has completed a checkpoint before."""
        self._decider = restart_decider(settings)
        self._settings = settings
        #: Consecutive failures of user code, and the time of the last restart.
        self._user_code_failures, self._restart_ms = 0, 0
        self._checkpointed = False
        #: The last delay, and whether a checkpoint was completed since.
        self._delay_ms, self._recovered = 0, False
        self.proven = proven

    def checkpointed(self) -> None:
        """Note a completed checkpoint of this run: its functions have processed all input before it."""
        self.proven = self._checkpointed = self._recovered = True

    def resumed(self, restored: Manifest | None, run_id: str) -> None:
        """Note a restore: a checkpoint of this run, under any leader, proves its functions."""
        self.proven = self.proven or (restored is not None and restored.run_id == run_id)

    def on_failure(self, cause: Cause, now_ms: int, chance: float) -> int | None:
        """Return the delay before the restart in ms, or None if the job fails for good; `chance` is in [0, 1).

        Strategies that count restarts themselves, such as `fixed-delay`, also count those after a user code error.
        """
        if cause is Cause.PERMANENT:
            return None
        if cause is not Cause.USER_CODE and self._settings.kind == "exponential-delay" and self._has_recovered(now_ms):
            self._decider = restart_decider(self._settings)
        final = cause is Cause.USER_CODE and self._settings.kind == "exponential-delay" and self._repeats(now_ms)
        delay = None if final else self._decider.on_failure(now_ms, chance)
        self._delay_ms, self._recovered = delay or 0, False
        self._restart_ms = now_ms + self._delay_ms
        return delay

    def _has_recovered(self, now_ms: int) -> bool:
        """Return whether the job has completed a checkpoint and run at least as long as its restart had waited."""
        return self._recovered and now_ms - self._restart_ms >= self._delay_ms

    def _repeats(self, now_ms: int) -> bool:
        """Count a failure of user code; return whether the limit is reached.

        A checkpoint alone does not reset the count: it may complete before the failing row is read again.
        """
        if self._checkpointed and now_ms - self._restart_ms >= self._settings.reset_after_ms:
            self._user_code_failures = 0
        self._user_code_failures += 1
        self._checkpointed = False
        return not self.proven or self._user_code_failures > self._settings.user_code_attempts
