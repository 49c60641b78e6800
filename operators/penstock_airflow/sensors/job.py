"""Sensors: a job's state, a checkpoint, its watermark, the lag of its sources.

All fail at once when the job has ended in a way that makes waiting useless. Deferred (the default) they hold no worker;
otherwise they are ordinary sensors (`mode`, `poke_interval`, `timeout`, `soft_fail`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Literal

import msgspec
from airflow.sdk import BaseSensorOperator, Context, PokeReturnValue
from airflow.sdk.exceptions import AirflowException, AirflowSensorTimeout, AirflowSkipException

from penstock.core.clock import Clock, SystemClock
from penstock.core.errors import PenstockError
from penstock_airflow.conditions import Answer, CheckpointAfter, Condition, InState, LagAtMost, WatermarkAt, encoded
from penstock_airflow.hooks.penstock import PenstockHook
from penstock_airflow.links import LINK_KEY, JobLink
from penstock_airflow.triggers.job import JobTrigger, unanswered

_KEY = "penstock_sensor"
_GRACE = timedelta(minutes=1)


class _JobSensor(BaseSensorOperator):
    """Waits for one condition on one job."""

    template_fields: Collection[str] = ("penstock_conn_id", "job")
    operator_extra_links: Collection[Any] = (JobLink(),)
    ui_color = "#e3f2d5"
    clock: ClassVar[Clock] = SystemClock()

    def __init__(
        self,
        *,
        job: str,
        penstock_conn_id: str = PenstockHook.default_conn_name,
        deferrable: bool = True,
        poke_interval: float = 5.0,
        **kwargs: Any,
    ) -> None:
        """Take `job`, an id or a name."""
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.job = job
        self.penstock_conn_id = penstock_conn_id
        self.deferrable = deferrable

    @abstractmethod
    def question(self, job_id: str, began_ms: int) -> Condition:
        """Return the condition; `began_ms` is when the first try of the task began."""

    def execute(self, context: Context) -> Any:
        """Poll once, then wait."""
        if not self.deferrable:
            return super().execute(context)
        found = self.poke(context)
        if found:
            return found.xcom_value
        began_ms, job_id = self._begun(context)
        seconds = float(self.timeout)
        return self.defer(
            trigger=JobTrigger(
                penstock_conn_id=self.penstock_conn_id,
                question=encoded(self.question(job_id, began_ms)),
                poll_seconds=float(self.poke_interval),
                deadline_ms=self.clock.now_ms() + int(seconds * 1000),
            ),
            method_name="execute_complete",
            timeout=timedelta(seconds=seconds) + _GRACE,
        )

    def poke(self, context: Context) -> PokeReturnValue:
        """Poll once."""
        began_ms, job_id = self._begun(context)
        question = self.question(job_id, began_ms)
        try:
            answer = PenstockHook(self.penstock_conn_id).run(question.ask)
        except PenstockError as error:
            answer = unanswered(error)
        self.log.info("%s", answer.text or answer.kind)
        return PokeReturnValue(is_done=answer.kind == "done", xcom_value=self._value(answer))

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:  # noqa: ARG002 - Airflow's signature
        """Continue after a deferral."""
        return self._value(msgspec.convert(event, Answer))

    def _value(self, answer: Answer) -> dict[str, Any]:
        if answer.kind == "timeout":
            raise AirflowSkipException(answer.text) if self.soft_fail else AirflowSensorTimeout(answer.text)
        if answer.kind == "failed":
            raise AirflowSkipException(answer.text) if self.soft_fail else AirflowException(answer.text)
        return answer.value

    def _begun(self, context: Context) -> tuple[int, str]:
        """Return when the task began and its job: the same over retries, so that all wait for the same condition."""
        store = context["task_state_store"]
        known = store.get(_KEY)
        if known is None:
            hook = PenstockHook(self.penstock_conn_id)
            job_id = str(hook.run(lambda client: client.job(self.job))["jid"])
            known = {"began_ms": self.clock.now_ms(), "job_id": job_id}
            store.set(_KEY, known)
            context["ti"].xcom_push(key=LINK_KEY, value=hook.place.page_of(job_id))
        return int(known["began_ms"]), str(known["job_id"])


class JobStatusSensor(_JobSensor):
    """Wait until a job is in one of `states` (Flink's names: RUNNING, FINISHED, CANCELED, FAILED, RESTARTING...)."""

    template_fields: Collection[str] = (*_JobSensor.template_fields, "states")

    def __init__(self, *, states: Sequence[str] = ("RUNNING",), **kwargs: Any) -> None:
        """Take `states`; the sensor fails if the job has ended in another one."""
        super().__init__(**kwargs)
        self.states = states

    def question(self, job_id: str, began_ms: int) -> Condition:  # noqa: ARG002 - as the others
        """Return the condition."""
        states = [self.states] if isinstance(self.states, str) else self.states
        return InState(job_id, tuple(states))


class CheckpointSensor(_JobSensor):
    """Wait until a checkpoint (or `kind="savepoint"`) is complete that was triggered after the task began.

    With `max_age_seconds`, one that was triggered up to that long before counts too.
    """

    template_fields: Collection[str] = (*_JobSensor.template_fields, "max_age_seconds")

    def __init__(
        self,
        *,
        max_age_seconds: float | str = 0,
        kind: Literal["checkpoint", "savepoint"] = "checkpoint",
        **kwargs: Any,
    ) -> None:
        """Take `kind`, the kind of snapshot that counts."""
        super().__init__(**kwargs)
        self.max_age_seconds = max_age_seconds
        self.kind = kind

    def question(self, job_id: str, began_ms: int) -> Condition:
        """Return the condition."""
        return CheckpointAfter(job_id, began_ms - int(float(self.max_age_seconds) * 1000), self.kind)


class WatermarkSensor(_JobSensor):
    """Wait until event time has reached `watermark`: all windows that end there have fired.

    `watermark` is an ISO 8601 time (UTC by default), such as `{{ data_interval_end }}`.
    """

    template_fields: Collection[str] = (*_JobSensor.template_fields, "watermark")

    def __init__(self, *, watermark: str | datetime, **kwargs: Any) -> None:
        """Take `watermark`; a text is parsed when the task runs."""
        super().__init__(**kwargs)
        self.watermark = watermark

    def question(self, job_id: str, began_ms: int) -> Condition:  # noqa: ARG002 - as the others
        """Return the condition."""
        given = self.watermark
        time = given if isinstance(given, datetime) else datetime.fromisoformat(given.strip())
        time = time if time.tzinfo else time.replace(tzinfo=UTC)
        return WatermarkAt(job_id, int(time.timestamp() * 1000))


class LagSensor(_JobSensor):
    """Wait until the sources of a job lag by at most `max_records` (`recordsLag` of Kafka sources)."""

    template_fields: Collection[str] = (*_JobSensor.template_fields, "max_records")

    def __init__(self, *, max_records: int | str = 0, **kwargs: Any) -> None:
        """Take `max_records`, the total over all partitions."""
        super().__init__(**kwargs)
        self.max_records = max_records

    def question(self, job_id: str, began_ms: int) -> Condition:  # noqa: ARG002 - as the others
        """Return the condition."""
        return LagAtMost(job_id, int(self.max_records))
