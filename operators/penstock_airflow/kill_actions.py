"""Actions on a job when a user ends the task that waits for it, as values that travel to the triggerer as JSON.

Used by the operators in a worker and by the trigger when they are deferred. Nothing here depends on Airflow.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.client.rest_client import RestClient
from penstock.core.clock import Clock
from penstock.core.errors import NotFoundError, UsageError

_POLL_MS = 200.0


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Cancel the job."""

    job_id: str

    def do(self, client: RestClient, clock: Clock, limit_ms: float) -> None:  # noqa: ARG002 - as the other
        """Cancel the job; the request is sent at once."""
        client.cancel(self.job_id)


class CancelSubmitted(msgspec.Struct, frozen=True, tag="cancel_submitted"):
    """Cancel the job that was submitted with a token, also if the submit is still in progress.

    Do nothing without one.
    """

    token: str

    def do(self, client: RestClient, clock: Clock, limit_ms: float) -> None:
        """Cancel the job, if there is one.

        Raises:
            PenstockError: no JobManager answers.
        """
        deadline = clock.monotonic_ms() + limit_ms
        while True:
            try:
                client.cancel(client.submitted(self.token))
            except NotFoundError:
                if clock.monotonic_ms() >= deadline:
                    return
                clock.sleep_ms(_POLL_MS)
            else:
                return


class RollBackUpgrade(msgspec.Struct, frozen=True, tag="take_back"):
    """Roll back an upgrade as soon as it is on trial; do nothing if it has ended."""

    job_id: str
    request_id: str

    def do(self, client: RestClient, clock: Clock, limit_ms: float) -> None:
        """Roll back; wait while the upgrade still stops the old version.

        Raises:
            PenstockError: no JobManager answers, or it was not on trial within the time.
        """
        deadline = clock.monotonic_ms() + limit_ms
        while True:
            view = client.newest_upgrade(self.job_id)
            if view["request-id"] != self.request_id or view["phase"] not in ("cut", "trial"):
                return
            try:
                client.judge_upgrade(self.job_id, healthy=False)
            except UsageError:
                if clock.monotonic_ms() >= deadline:
                    raise
                clock.sleep_ms(_POLL_MS)
            else:
                return


KillAction = Cancel | CancelSubmitted | RollBackUpgrade
#: A worker that is asked to end has a few seconds for its action.
LAST_MS = 3_000.0
#: Time limit where no process waits for the action.
PATIENT_MS = 60_000.0


def encoded(action: KillAction | None) -> dict[str, Any]:
    """Return the action as JSON values; empty for none."""
    found: dict[str, Any] = {} if action is None else msgspec.to_builtins(action)
    return found


def decoded(document: dict[str, Any]) -> KillAction | None:
    """Return the action from the values of `encoded`."""
    found: KillAction | None = msgspec.convert(document, KillAction) if document else None
    return found
