"""Savepoints: take one, find the newest, remove old ones, and raise an alarm when the newest is too old."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException

from penstock.client.savepoints import Retention, Savepoint, dispose, list_savepoints
from penstock.core.errors import SavepointInUseError
from penstock_airflow import templated
from penstock_airflow.conditions import Operation
from penstock_airflow.operators.operator import PenstockOperator

_HOUR_MS = 3_600_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class TriggerSavepointOperator(PenstockOperator):
    """Take a savepoint of a running job; return its `location`, `job_id`.

    `job` is an id or a name; `target` a folder or `s3://` prefix below which the savepoint gets a new folder; a
    `native` one has the checkpoint's files as they are. Retried or resumed by another process, the task waits for the
    savepoint that it has requested.
    """

    template_fields: Collection[str] = (*PenstockOperator.template_fields, "job", "target", "native")

    def __init__(self, *, job: str, target: str | None = None, native: bool | str = False, **kwargs: Any) -> None:
        """Take `target`, by default the folder `savepoints` of the job's checkpoints."""
        super().__init__(**kwargs)
        self.job = job
        self.target = target
        self.native = native

    def perform(self, context: Context) -> Any:
        """Request the savepoint, and wait."""
        attempts = self.attempts(context)
        token = attempts.begin()
        attempts.note(attempts.job_id or self.job_id_of(self.job))
        self.store_job_link(context, attempts.job_id)
        target, native = templated.text(self.target) or None, templated.flag("native", self.native)
        self.hook.run(lambda client: client.savepoint(attempts.job_id, target, token=token, native=native))
        return self.wait_for(context, Operation(attempts.job_id, token, "savepoint"))


class CleanSavepointsOperator(PenstockOperator):
    """Remove old savepoints below `target`; return the lists `removed`, `kept` and `in_use`.

    The newest `keep` always stay, and all that are younger than `keep_hours`. One that a job still reads from stays,
    too; any other refusal fails the task. Several jobs below one folder have separate retention. The worker reads the
    folder itself and needs the credentials of the store (PENSTOCK_S3_...); the cluster removes the savepoints.
    """

    template_fields: Collection[str] = (*PenstockOperator.template_fields, "target", "keep", "keep_hours")

    def __init__(self, *, target: str, keep: int | str = 7, keep_hours: float | str = 0, **kwargs: Any) -> None:
        """Take `keep`, which is at least 1."""
        super().__init__(**kwargs)
        self.target = target
        self.keep = keep
        self.keep_hours = keep_hours

    def perform(self, context: Context) -> dict[str, list[str]]:  # noqa: ARG002 - Airflow's signature
        """List the folder, and remove."""
        keep_ms = int(templated.amount("keep_hours", self.keep_hours) * _HOUR_MS)
        retention = Retention(templated.count("keep", self.keep) or 0, keep_ms)
        found = list_savepoints(self.target)
        expired = {savepoint.uri for savepoint in retention.expired(found, self.clock.now_ms())}
        result: dict[str, list[str]] = {"removed": [], "kept": [], "in_use": []}
        for savepoint in found:
            result[self._settle(savepoint, expired=savepoint.uri in expired)].append(savepoint.uri)
        self.log.info("%s", ", ".join(f"{len(uris)} {what}" for what, uris in result.items()))
        return result

    def _settle(self, savepoint: Savepoint, *, expired: bool) -> str:
        if not expired:
            return "kept"
        try:
            self.hook.run(lambda client: dispose(client, savepoint.uri, self.clock, self.timeout_seconds * 1000))
        except SavepointInUseError as error:
            self.log.info("%s stays: %s", savepoint.uri, error)
            return "in_use"
        return "removed"


class NewestSavepointOperator(PenstockOperator):
    """Find the newest savepoint of a running job below `target`; fail if there is none.

    Returns its `location`, `taken_ms` and `savepoint_watermark` (event time at the savepoint, ISO 8601), the job's
    `job_id` and `name`, and its present `now_ms` and `watermark`. The worker reads the folder itself.
    """

    template_fields: Collection[str] = (*PenstockOperator.template_fields, "job", "target")

    def __init__(self, *, job: str, target: str, **kwargs: Any) -> None:
        """Take `job`, an id or a name."""
        super().__init__(**kwargs)
        self.job = job
        self.target = target

    def perform(self, context: Context) -> dict[str, Any]:
        """Search the folder."""
        job = self.hook.run(lambda client: client.job(self.job))
        self.store_job_link(context, job["jid"])
        found = [savepoint for savepoint in list_savepoints(self.target) if savepoint.job_name == job["name"]]
        if not found:
            raise AirflowException(f"there is no savepoint of {job['name']} below {self.target}")
        passed = found[0].watermark
        if passed is None:
            raise AirflowException(f"the savepoint {found[0].uri} has no event time")
        reached = self.hook.run(lambda client: client.summary(job["jid"]))["watermark"]
        if reached is None:
            raise AirflowException(f"job {job['name']} has no event time yet")
        return {
            "location": found[0].uri,
            "taken_ms": found[0].created_ms,
            "savepoint_watermark": (_EPOCH + timedelta(microseconds=passed)).isoformat(),
            "job_id": job["jid"],
            "name": job["name"],
            "now_ms": self.clock.now_ms(),
            "watermark": datetime.fromtimestamp(int(reached) / 1000, UTC).isoformat(),
        }


class CheckSavepointAgeOperator(PenstockOperator):
    """Fail if a job's newest savepoint below `target` is older than `alarm_hours` (0: never), or if there is none."""

    template_fields: Collection[str] = (*PenstockOperator.template_fields, "target", "alarm_hours")

    def __init__(self, *, target: str, alarm_hours: float | str = 24, **kwargs: Any) -> None:
        """Prepare; the worker reads the folder itself."""
        super().__init__(**kwargs)
        self.target = target
        self.alarm_hours = alarm_hours

    def perform(self, context: Context) -> dict[str, float]:  # noqa: ARG002 - Airflow's signature
        """Return the age of each job's newest savepoint in hours."""
        alarm_hours = templated.amount("alarm_hours", self.alarm_hours)
        now_ms = self.clock.now_ms()
        newest = {found.job_name: found for found in reversed(list_savepoints(self.target))}
        ages = {name: (now_ms - found.created_ms) / _HOUR_MS for name, found in newest.items()}
        if alarm_hours and not ages:
            raise AirflowException(f"there is no savepoint below {self.target}")
        late = [f"{name}: {age:.1f} h" for name, age in ages.items() if age > alarm_hours]
        if alarm_hours and late:
            msg = f"the newest savepoint below {self.target} is older than {alarm_hours:g} h ({', '.join(late)})"
            raise AirflowException(msg)
        return {name: round(age, 3) for name, age in ages.items()}
