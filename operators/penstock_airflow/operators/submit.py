"""Submitting a job file: done when the job runs and its first checkpoint is complete."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from penstock.core import failpoints
from penstock.core.errors import NotFoundError, PenstockError
from penstock_airflow.job_command import JobCommand, JobFile
from penstock_airflow.operators.operator import PenstockOperator
from penstock_airflow.questions import TERMINAL, Started


class SubmitJobOperator(PenstockOperator):
    """Start the job of a file, or find it running; return its `job_id`, `name` and `state`.

    The file is run by the interpreter that the connection names, on the worker: `penstock run FILE --cluster ...`.
    A job of the same name and checkpoint root that runs already is taken for this one. Retried, cleared or run by
    another worker after the first was killed, the task finds the job it has submitted. It submits again only when that
    job was cancelled or failed, or had ended and the task is cleared after its success.

    `from_uri` is a savepoint to start from. `options` are further ones of `penstock run`: `fresh`, `no_claim`,
    `accept_duplicates` (true or false), `allow_non_restored_state` (a list) and `settings` (name -> value).
    `on_kill`: what happens to the job when a user ends the task while it waits: `cancel` or `keep`.
    """

    template_fields: Collection[str] = (
        *PenstockOperator.template_fields,
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
        """`settle_seconds` is for jobs without checkpoints: how long one has to run."""
        super().__init__(**kwargs)
        self.job_file = job_file
        self.parallelism = parallelism
        self.from_uri = from_uri
        self.options = dict(options or {})
        self.job_on_kill = on_kill
        self.settle_seconds = settle_seconds
        self._command: JobCommand | None = None
        self._job_id = ""

    def execute(self, context: Context) -> Any:
        """Submit, and wait."""
        if self.job_on_kill not in ("cancel", "keep"):
            raise AirflowFailException(f"on_kill={self.job_on_kill!r}: cancel or keep")
        attempts = self.attempts(context)
        if attempts.job_id:
            state = self._state_of(attempts.job_id)
            if state not in TERMINAL:
                attempts.reopen()
            elif state == "FINISHED" and not attempts.ended:
                return self.wait_for(context, self._question(attempts.job_id))
            else:
                attempts.end()
        token = attempts.begin()
        self._job_id = attempts.job_id or self._submit(token)
        failpoints.hit("airflow.after_submit", job=self._job_id)
        attempts.note(self._job_id)
        self.about(context, self._job_id)
        self.log.info("job %s, waiting until it runs", self._job_id)
        cancel = self._job_id if self.job_on_kill == "cancel" else ""
        return self.wait_for(context, self._question(self._job_id), cancel_on_kill=cancel)

    def on_kill(self) -> None:
        """End what this process has begun; the job is cancelled if that was asked for."""
        if self._command is not None:
            self._job_id = self._command.interrupted(let_end=self.job_on_kill == "cancel") or self._job_id
        if self._job_id and self.job_on_kill == "cancel":
            self.hook.run(lambda client: client.cancel(self._job_id))

    def _question(self, job_id: str) -> Started:
        return Started(job_id, int(self.settle_seconds * 1000))

    def _state_of(self, job_id: str) -> str:
        try:
            return str(self.hook.run(lambda client: client.job(job_id))["state"])
        except NotFoundError:
            return "FAILED"  # a cluster that knows nothing of it will not run it

    def _submit(self, token: str) -> str:
        try:
            job = JobFile.of(self.job_file, self.parallelism, self.from_uri, self.options)
            self._command = JobCommand(job, self.hook.place, token)
            return self._command.run()
        except PenstockError as error:
            if self._command is None or self._command.refused:
                raise AirflowFailException(str(error)) from error
            raise AirflowException(str(error)) from error
        finally:
            self._command = None
