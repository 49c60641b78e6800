"""The base of all operators of penstock: send one request to a cluster, then wait, in a worker or deferred.

`perform` of an operator sends the request (`Attempts` makes sure that it is sent once) and calls `wait_for`. The answer
is passed to `finished`, in the worker and after a deferral. A refused request fails the task without a retry.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any, ClassVar

import msgspec
from airflow.sdk import Asset, BaseOperator, Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from penstock.core.clock import Clock, SystemClock
from penstock.core.errors import NotFoundError, PenstockError, UsageError
from penstock_airflow import kill_actions
from penstock_airflow.attempts import Attempts
from penstock_airflow.conditions import Answer, Condition, encoded
from penstock_airflow.hooks.penstock import PenstockHook
from penstock_airflow.kill_actions import KillAction
from penstock_airflow.links import LINK_KEY, JobLink
from penstock_airflow.triggers.job import JobTrigger, unanswered

#: Added to the time-out of a deferral, so that the trigger's own message comes first.
_GRACE = timedelta(minutes=1)


class PenstockOperator(BaseOperator):
    """Sends one request to a cluster and returns its result.

    `deferrable` waits in the triggerer and holds no worker; `poll_seconds` is the interval of checks, `timeout_seconds`
    their limit. The request continues after that, and a retry continues to wait for it.
    """

    template_fields: Collection[str] = ("penstock_conn_id",)
    operator_extra_links: Collection[Any] = (JobLink(),)
    ui_color = "#d5e8f2"
    clock: ClassVar[Clock] = SystemClock()
    #: The exception of a task whose request has failed; a retry sends a new request.
    failure: ClassVar[type[AirflowException]] = AirflowException

    def __init__(
        self,
        *,
        penstock_conn_id: str = PenstockHook.default_conn_name,
        deferrable: bool = True,
        poll_seconds: float = 2.0,
        timeout_seconds: float = 600.0,
        **kwargs: Any,
    ) -> None:
        """Prepare; the connection is looked up when the task runs."""
        super().__init__(**kwargs)
        self.penstock_conn_id = penstock_conn_id
        self.deferrable = deferrable
        self.poll_seconds = poll_seconds
        self.timeout_seconds = timeout_seconds

    def execute(self, context: Context) -> Any:
        """Do the work of the task; a retry would repeat a refusal, so there is none."""
        try:
            return self.perform(context)
        except (NotFoundError, UsageError) as error:
            raise AirflowFailException(str(error)) from error

    @abstractmethod
    def perform(self, context: Context) -> Any:
        """Do the work of the task.

        Raises:
            NotFoundError, UsageError: the request is refused, and would be refused again.
            AirflowException: it failed.
        """

    @property
    def hook(self) -> PenstockHook:
        """Return the hook of the task's connection."""
        return PenstockHook(self.penstock_conn_id)

    def attempts(self, context: Context) -> Attempts:
        """Return the earlier requests of this task instance."""
        ti = context["ti"]
        task = "/".join(str(part) for part in (ti.dag_id, ti.run_id, ti.task_id, ti.map_index))
        return Attempts(context["task_state_store"], task)

    def store_job_link(self, context: Context, job_id: str) -> None:
        """Store the link to the job's page."""
        context["ti"].xcom_push(key=LINK_KEY, value=self.hook.place.page_of(job_id))

    def job_id_of(self, job: str) -> str:
        """Return the id of a job by id or name.

        Raises:
            NotFoundError: there is none.
        """
        return str(self.hook.run(lambda client: client.job(str(job)))["jid"])

    def wait_for(self, context: Context, question: Condition, *, when_killed: KillAction | None = None) -> Any:
        """Return the result of `finished` for the answer; deferred, this does not return."""
        deadline_ms = self.clock.now_ms() + int(self.timeout_seconds * 1000)
        if self.deferrable:
            self.defer(
                trigger=JobTrigger(
                    penstock_conn_id=self.penstock_conn_id,
                    question=encoded(question),
                    poll_seconds=self.poll_seconds,
                    deadline_ms=deadline_ms,
                    when_killed=kill_actions.encoded(when_killed),
                ),
                method_name="execute_complete",
                timeout=timedelta(seconds=self.timeout_seconds) + _GRACE,
            )
        return self.answered(context, wait_in_worker(self.hook, question, self.clock, self.poll_seconds, deadline_ms))

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Continue after a deferral."""
        return self.answered(context, msgspec.convert(event, Answer))

    def answered(self, context: Context, answer: Answer) -> Any:
        """End the task, or send the request again if the cluster has lost it."""
        attempts = self.attempts(context)
        if answer.kind == "lost":
            self.log.warning("the cluster does not know the request any longer, so it is sent again: %s", answer.text)
            return self.execute(context)
        if answer.kind == "timeout":
            msg = f"{answer.text} (after {self.timeout_seconds:.0f} s; the request continues, and a retry waits for it)"
            raise AirflowException(msg)
        if answer.kind != "done":
            attempts.end()
            raise (AirflowFailException if answer.final else self.failure)(answer.text)
        result = self.finished(context, answer.value)
        attempts.end()
        attach_to_assets(context, self.outlets, answer.value)
        return result

    def finished(self, context: Context, value: dict[str, Any]) -> Any:  # noqa: ARG002 - for operators that use it
        """Return the task's result (its XCom `return_value`)."""
        return value


def wait_in_worker(
    hook: PenstockHook, question: Condition, clock: Clock, poll_seconds: float, deadline_ms: int
) -> Answer:
    """Ask until there is an answer, in the worker."""
    while True:
        try:
            answer = hook.run(question.ask)
        except PenstockError as error:
            answer = unanswered(error)
        if answer.kind != "wait":
            return answer
        if clock.now_ms() >= deadline_ms:
            return Answer(kind="timeout", text=f"time-out: {answer.text}")
        clock.sleep_ms(poll_seconds * 1000)


def attach_to_assets(context: Context, outlets: Sequence[Any], value: dict[str, Any]) -> None:
    """Attach the result to the events of the task's asset outlets."""
    for asset in outlets or ():
        if isinstance(asset, Asset):
            context["outlet_events"][asset].extra.update(value)
