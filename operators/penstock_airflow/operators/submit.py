"""Submits a job file; done when the job runs and its first checkpoint is complete."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException

from penstock.core import failpoints
from penstock.core.errors import NotFoundError
from penstock_airflow.command_options import RUN, Kind
from penstock_airflow.conditions import TERMINAL, Started
from penstock_airflow.kill_actions import LAST_MS, Cancel, CancelSubmitted
from penstock_airflow.operators.command import PARALLELISM, CommandOperator

_KNOWN: dict[str, Kind] = {**PARALLELISM, "from": "text"}
#: Time limit of a cancel that is in progress.
_CANCEL_MS = 20_000


class SubmitJobOperator(CommandOperator):
    """Start the job of a file, or find it running; return its `job_id`, `name` and `state`.

    The interpreter of the connection runs the file on the worker: `penstock run FILE --cluster ...`. A running job of
    the same name and checkpoint root counts as this one (with `options["attach"]` false the task fails then: for a
    start whose `from_uri` matters). Retried, cleared or run by another worker after the first was killed, the task
    finds the job it has submitted. It submits again only if that job was cancelled or failed, or had ended and the task
    is cleared after its success. A job that is canceled meanwhile, or fails on its input or in a user's function, fails
    the task without a retry.

    `from_uri` is a savepoint to start from. `options` are further ones of `penstock run`: `fresh`, `no_claim`,
    `accept_duplicates` (true or false), `name` (instead of the file's), `allow_non_restored_state` (a list), `settings`
    (name -> value) and `environment` (variables for the job file). `on_kill` decides about the job when a user ends the
    waiting task: `cancel` or `keep`.
    """

    template_fields: Collection[str] = (
        *CommandOperator.template_fields,
        "job_file",
        "parallelism",
        "from_uri",
        "options",
        "job_on_kill",
    )

    def __init__(
        self,
        *,
        job_file: str,
        parallelism: int | str | None = None,
        from_uri: str | None = None,
        options: Mapping[str, Any] | None = None,
        on_kill: str = "cancel",
        settle_seconds: float = 10.0,
        **kwargs: Any,
    ) -> None:
        """Take `settle_seconds`, for jobs without checkpoints: how long one has to run."""
        super().__init__(**kwargs)
        self.job_file = job_file
        self.parallelism = parallelism
        self.from_uri = from_uri
        self.options = {"attach": True, **(options or {})}
        self.job_on_kill = on_kill
        self.settle_seconds = settle_seconds
        self._token = ""
        self._job_id = ""

    def perform(self, context: Context) -> Any:
        """Submit, and wait."""
        if self.job_on_kill not in ("cancel", "keep"):
            raise AirflowFailException(f"on_kill={self.job_on_kill!r}: use cancel or keep")
        attempts = self.attempts(context)
        if attempts.job_id:
            state = self._state_of(attempts.job_id)
            if state not in TERMINAL:
                attempts.reopen()
            elif state == "FINISHED" and not attempts.ended:
                return self.wait_for(context, self._question(attempts.job_id, found=True))
            else:
                attempts.end()
        self._token, found = attempts.begin(), bool(attempts.job_id)
        self._job_id = attempts.job_id or self._submit(self._token)
        failpoints.hit("airflow.after_submit", job=self._job_id)
        attempts.note(self._job_id)
        self.store_job_link(context, self._job_id)
        self.log.info("job %s, waiting until it runs", self._job_id)
        action = Cancel(self._job_id) if self.job_on_kill == "cancel" else None
        return self.wait_for(context, self._question(self._job_id, found=found), when_killed=action)

    def on_kill(self) -> None:
        """End the process; cancel the job if that was requested."""
        self.end_command()
        if self.job_on_kill == "cancel" and self._token:
            action = Cancel(self._job_id) if self._job_id else CancelSubmitted(self._token)
            self.hook.run(lambda client: action.do(client, self.clock, LAST_MS))

    def _question(self, job_id: str, *, found: bool) -> Started:
        return Started(job_id, int(self.settle_seconds * 1000), found)

    def _state_of(self, job_id: str) -> str:
        """Return the state of a job; the end of a cancel is waited for, as a cleared task requests one."""
        try:
            state = str(self.hook.run(lambda client: client.job(job_id))["state"])
            if state == "CANCELLING":
                state = str(self.hook.run(lambda client: client.job_after(job_id, _CANCEL_MS))["state"])
            return state
        except NotFoundError:
            return "FAILED"  # a cluster that does not know the job will not run it

    def _submit(self, token: str) -> str:
        known = {"parallelism": self.parallelism, "from": self.from_uri}
        tail = ["--cluster", self.hook.place.url, "--detached", "--token", token]
        said = self.run_command(["run", self.job_file], (known, _KNOWN), (self.options, RUN), tail=tail)
        return str(said["jobid"])
