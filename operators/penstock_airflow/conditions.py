"""The conditions that a task waits for, as values: each one polls the REST API once and returns done, failed, or wait.

Used by the operators and sensors while they wait in a worker, and by the trigger when they are deferred: a condition
travels to the triggerer as JSON (`encoded`, `decoded`). Nothing here depends on Airflow.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from penstock.client.rest_client import RestClient
from penstock.core.errors import NotFoundError

TERMINAL = frozenset({"FINISHED", "CANCELED", "FAILED"})


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one poll; `lost`: the JobManager does not know the request, which may be sent again."""

    kind: Literal["wait", "done", "failed", "lost", "timeout"]
    value: dict[str, Any] = {}
    text: str = ""
    #: Whether there is no sense in a retry: the cause is in the job or its input, or a user has canceled the job.
    final: bool = False


class Started(msgspec.Struct, frozen=True, tag="started"):
    """The job runs, with a complete checkpoint; a job without checkpoints has to run for `settle_ms`.

    A bounded job that has finished counts too. `found`: an earlier try has submitted it, so the end of that try may
    have canceled the job. A job that was canceled in another way is not started again by a retry.
    """

    job_id: str
    settle_ms: int
    found: bool = False

    def ask(self, client: RestClient) -> Answer:
        """Poll once."""
        summary = client.summary(self.job_id)
        job = client.job(self.job_id)
        if job["state"] != "RUNNING":
            answer = _ended(client, job, {"FINISHED"})
            if job["state"] != "CANCELED" or self.found:
                return answer
            text = f"{answer.text} by a user or another task (clear this task to start the job again)"
            return msgspec.structs.replace(answer, text=text, final=True)
        if summary["checkpoints-completed"]:
            return _done(job)
        if summary["checkpoint-interval"] is not None:
            return Answer(kind="wait", text="running, without a complete checkpoint so far")
        if int(job["now"]) - int(job["timestamps"]["RUNNING"]) >= self.settle_ms:
            return _done(job)
        return Answer(kind="wait", text="running, but only for a short time so far")


class Operation(msgspec.Struct, frozen=True, tag="operation"):
    """A request was carried out; after a stop the job also has to have ended."""

    job_id: str
    request_id: str
    what: Literal["savepoint", "stop", "rescale", "upgrade"]

    def ask(self, client: RestClient) -> Answer:
        """Poll once."""
        ways = {"rescale": client.rescaling_status, "upgrade": client.upgrade_status}
        try:
            answer = ways.get(self.what, client.savepoint_status)(self.job_id, self.request_id)
        except NotFoundError as error:
            return Answer(kind="lost", text=str(error))
        if answer["status"]["id"] != "COMPLETED":
            return Answer(kind="wait", text=self._progress(client))
        operation = answer["operation"]
        if "failure-cause" in operation:
            return self._failed(client, operation["failure-cause"])
        if self.what == "stop" and client.job(self.job_id)["state"] not in TERMINAL:
            return Answer(kind="wait", text="the savepoint is complete, the job is ending")
        found = {"location": operation.get("location", "")} if self.what != "rescale" else {}
        return Answer(kind="done", value={"job_id": self.job_id, **found})

    def _failed(self, client: RestClient, cause: dict[str, Any]) -> Answer:
        """Return the answer, with the failure of a job that does not run; one that has ended takes no request again."""
        why = " ".join(str(cause.get("stack-trace") or cause.get("class")).split())
        text, state = f"{self.what} failed: {why}", str(client.job(self.job_id)["state"])
        if state not in ("RUNNING", "FINISHED", "CANCELED"):
            text += f"; the job is {state}: {root_cause(client, self.job_id)[0]}"
        return Answer(kind="failed", text=text, final=state in TERMINAL)

    def _progress(self, client: RestClient) -> str:
        if self.what != "upgrade":
            return f"the {self.what} is in progress"
        view = client.newest_upgrade(self.job_id)
        done, restarts = view["checkpoints"], view["restarts"]
        allowed = f"of {restarts['allowed']} allowed" if restarts["allowed"] else "(none is allowed)"
        return (
            f"{view['phase']}: {done['completed']} of {done['wanted']} checkpoints,"
            f" restarts: {restarts['seen']} {allowed}, {view['held']['rows']} rows withheld"
        )


class InState(msgspec.Struct, frozen=True, tag="in_state"):
    """The job is in one of these states; fails once the job has ended in another one."""

    job_id: str
    states: tuple[str, ...]

    def ask(self, client: RestClient) -> Answer:
        """Poll once."""
        job = client.job(self.job_id)
        return _done(job) if job["state"] in self.states else _ended(client, job, set())


class CheckpointAfter(msgspec.Struct, frozen=True, tag="checkpoint_after"):
    """A checkpoint (or a savepoint) is complete that was triggered at `after_ms` or later."""

    job_id: str
    after_ms: int
    kind: Literal["checkpoint", "savepoint"] = "checkpoint"

    def ask(self, client: RestClient) -> Answer:
        """Poll once."""
        found = client.checkpoints(self.job_id)["latest"]["savepoint" if self.kind == "savepoint" else "completed"]
        if found is not None and int(found["trigger_timestamp"]) >= self.after_ms:
            names = ("id", "external_path", "trigger_timestamp", "end_to_end_duration", "state_size")
            return Answer(kind="done", value={"job_id": self.job_id, **{name: found[name] for name in names}})
        return _ended(client, client.job(self.job_id), set())


class WatermarkAt(msgspec.Struct, frozen=True, tag="watermark_at"):
    """Event time has reached `watermark_ms` (since the epoch) in all subtasks; a finished job is past every time."""

    job_id: str
    watermark_ms: int

    def ask(self, client: RestClient) -> Answer:
        """Poll once."""
        reached = client.summary(self.job_id)["watermark"]
        if reached is not None and reached >= self.watermark_ms:
            return Answer(kind="done", value={"job_id": self.job_id, "watermark": reached})
        return _ended(client, client.job(self.job_id), {"FINISHED"})


class LagAtMost(msgspec.Struct, frozen=True, tag="lag_at_most"):
    """The sources of the job lag by at most `records`; a finished job has no lag."""

    job_id: str
    records: int

    def ask(self, client: RestClient) -> Answer:
        """Poll once."""
        job = client.job(self.job_id)
        if job["state"] != "RUNNING":
            return _ended(client, job, {"FINISHED"})
        lags = client.summary(self.job_id)["rows-unread"]
        unknown = [uid for uid, lag in lags.items() if lag is None]
        if not lags or unknown:
            text = f"the lag of {', '.join(unknown)} is not known yet" if unknown else "no source has reported its lag"
            return Answer(kind="wait", text=text)
        if sum(lags.values()) <= self.records:
            return Answer(kind="done", value={"job_id": self.job_id, "lag": sum(lags.values())})
        return Answer(kind="wait", text=f"{sum(lags.values()):,} records of lag")


Condition = Started | Operation | InState | CheckpointAfter | WatermarkAt | LagAtMost


def encoded(question: Condition) -> dict[str, Any]:
    """Return the condition as JSON values."""
    found: dict[str, Any] = msgspec.to_builtins(question)
    return found


def decoded(document: dict[str, Any]) -> Condition:
    """Return the condition from the values of `encoded`."""
    found: Condition = msgspec.convert(document, Condition)
    return found


def root_cause(client: RestClient, job_id: str) -> tuple[str, bool]:
    """Return the last line of a job's newest failure, and whether a new start would fail again."""
    found = client.exceptions(job_id)
    text = str(found.get("root-exception") or "no cause was reported")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    newest = [entry["failureLabels"].get("cause") for entry in found["exceptionHistory"]["entries"][:1]]
    return lines[-1] if lines else text, newest[:1] in (["permanent"], ["user code"])


def _done(job: dict[str, Any]) -> Answer:
    return Answer(kind="done", value={"job_id": job["jid"], "name": job["name"], "state": job["state"]})


def _ended(client: RestClient, job: dict[str, Any], good: set[str]) -> Answer:
    """Return done or failed for a job that has ended, wait for a running one."""
    state = str(job["state"])
    if state not in TERMINAL:
        return Answer(kind="wait", text=f"the job is {state}")
    if state in good:
        return _done(job)
    text = f"job {job['name']!r} ({job['jid']}) is {state}"
    if state != "FAILED":
        return Answer(kind="failed", text=text)
    why, final = root_cause(client, job["jid"])
    return Answer(kind="failed", text=f"{text}: {why}", final=final)
