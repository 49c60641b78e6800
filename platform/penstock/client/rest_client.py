"""A thin synchronous client of the JobManager's REST API; every command line, handle and test goes through it.

Paths and field names are Flink's where Flink has them, `/v1/penstock/...` for our own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

import httpx

from penstock.core.errors import NotFoundError, PenstockError, UsageError

if TYPE_CHECKING:
    from types import TracebackType

_TIMEOUT_SECONDS = 30.0


class SubmitFlags(TypedDict, total=False):
    """How a job is started; what is left out is as the JobManager has it by default."""

    claim: bool
    fresh: bool
    accept_duplicates: bool
    allow_non_restored_state: bool


class RestClient:
    """One JobManager, by URL; use as a context manager or close it."""

    def __init__(self, url: str, *, timeout_seconds: float = _TIMEOUT_SECONDS) -> None:
        """`url` like `http://127.0.0.1:8081`; nothing is sent yet."""
        self.url = url.rstrip("/")
        self._http = httpx.Client(base_url=self.url, timeout=timeout_seconds)

    def __enter__(self) -> Self:
        """Return self."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def overview(self) -> dict[str, Any]:
        """Return slots, TaskManagers and job counts (`/overview`)."""
        return self._get("/v1/overview")

    def jobs(self) -> list[dict[str, Any]]:
        """Return all jobs, newest first (`/jobs/overview`)."""
        jobs: list[dict[str, Any]] = self._get("/v1/jobs/overview")["jobs"]
        return jobs

    def job(self, job_id: str) -> dict[str, Any]:
        """Return one job with its vertices and their rates."""
        return self._get(f"/v1/jobs/{job_id}")

    def checkpoints(self, job_id: str) -> dict[str, Any]:
        """Return checkpoint counts, summary, latest and history."""
        return self._get(f"/v1/jobs/{job_id}/checkpoints")

    def exceptions(self, job_id: str) -> dict[str, Any]:
        """Return the failures of a job, newest first."""
        return self._get(f"/v1/jobs/{job_id}/exceptions")

    def story(self, job_id: str) -> list[dict[str, Any]]:
        """Return the job's decisions, oldest first."""
        story: list[dict[str, Any]] = self._get(f"/v1/penstock/jobs/{job_id}/story")["entries"]
        return story

    def summary(self, job_id: str) -> dict[str, Any]:
        """Return the figures of a progress display: records, watermark (ms), checkpoints, restarts."""
        return self._get(f"/v1/penstock/jobs/{job_id}/summary")

    def workers(self, job_id: str) -> list[dict[str, Any]]:
        """Return the slot workers of a job: id, pid, TaskManager."""
        workers: list[dict[str, Any]] = self._get(f"/v1/penstock/jobs/{job_id}/workers")["workers"]
        return workers

    def taskmanagers(self) -> list[dict[str, Any]]:
        """Return the registered TaskManagers."""
        managers: list[dict[str, Any]] = self._get("/v1/taskmanagers")["taskmanagers"]
        return managers

    def submit(
        self, graph: bytes, *, token: str = "", from_uri: str | None = None, **flags: Unpack[SubmitFlags]
    ) -> str:
        """Submit a job graph (`encode_graph`) and return the job id; the same token gives the same job."""
        params: dict[str, Any] = {"token": token, **{name.replace("_", "-"): value for name, value in flags.items()}}
        if from_uri:
            params["from"] = from_uri
        answer = self._send("POST", "/v1/penstock/submit", params=params, content=graph)
        return str(answer["jobid"])

    def cancel(self, job_id: str) -> None:
        """Cancel a job; its checkpoints are retained."""
        self._send("PATCH", f"/v1/jobs/{job_id}", params={"mode": "cancel"})

    def stop(self, job_id: str, *, drain: bool = False, target: str | None = None) -> str:
        """Start stop-with-savepoint; return the request id for `savepoint_status`."""
        answer = self._send("POST", f"/v1/jobs/{job_id}/stop", json={"drain": drain, "targetDirectory": target})
        return str(answer["request-id"])

    def savepoint(self, job_id: str, target: str | None = None) -> str:
        """Start a savepoint; return the request id for `savepoint_status`."""
        answer = self._send(
            "POST", f"/v1/jobs/{job_id}/savepoints", json={"target-directory": target, "cancel-job": False}
        )
        return str(answer["request-id"])

    def savepoint_status(self, job_id: str, request_id: str) -> dict[str, Any]:
        """Return `{"status": {"id": IN_PROGRESS|COMPLETED}, "operation": {...}}`."""
        return self._get(f"/v1/jobs/{job_id}/savepoints/{request_id}")

    def log(self, worker_id: str) -> str:
        """Return the tail of a worker's log."""
        return str(self._get(f"/v1/penstock/workers/{worker_id}/log")["text"])

    def shutdown(self) -> None:
        """Stop the cluster."""
        self._send("DELETE", "/v1/cluster")

    def _get(self, path: str) -> dict[str, Any]:
        return self._send("GET", path)

    def _send(self, method: str, path: str, **content: Any) -> dict[str, Any]:
        try:
            response = self._http.request(method, path, **content)
        except httpx.HTTPError as error:
            msg = f"no JobManager answers at {self.url}: {error}"
            raise PenstockError(msg, hint="start one with `penstock cluster start`, or check the URL") from error
        if response.is_success:
            answer: dict[str, Any] = response.json() if response.content else {}
            return answer
        raise _error_of(response)


def _error_of(response: httpx.Response) -> PenstockError:
    try:
        body = response.json()
        texts = body.get("errors") or [str(body)]
    except ValueError:
        texts = [response.text[:500]]
    message = str(texts[0])
    if response.status_code == httpx.codes.NOT_FOUND:
        return NotFoundError(message)
    if response.status_code in (httpx.codes.BAD_REQUEST, httpx.codes.CONFLICT, httpx.codes.UNPROCESSABLE_ENTITY):
        return UsageError(message)
    return PenstockError(message)
