"""New events of a job: the state from the REST API compared with earlier reports. Nothing here depends on Airflow."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from penstock.client.rest_client import RestClient
from penstock_airflow.conditions import root_cause

KINDS = ("savepoint", "failed", "window")
_STORED = ("savepoint_ms", "failed_ms", "window_ms")


@dataclass(frozen=True, slots=True)
class ReportedEvents:
    """The events that have been reported."""

    #: Acknowledgement time of the newest reported savepoint.
    savepoint_ms: int
    #: End of the newest reported failed job.
    failed_ms: int
    #: End of the newest reported window (event time); None: event time is not known so far.
    window_ms: int | None = None
    #: Whether it differs from the stored value.
    changed: bool = True

    @classmethod
    def of(cls, stored: dict[str, Any] | None, now_ms: int) -> Self:
        """Return the stored value; at the very first look, existing events count as reported."""
        if stored is None:
            return cls(now_ms, now_ms)
        return cls(int(stored["savepoint_ms"]), int(stored["failed_ms"]), stored.get("window_ms"), changed=False)

    def stored(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {name: getattr(self, name) for name in _STORED if getattr(self, name) is not None}


def new_events(
    client: RestClient, name: str, seen: ReportedEvents, window_seconds: int
) -> tuple[list[dict[str, Any]], ReportedEvents]:
    """Return the events of the job of that name since `seen`, oldest first, and the updated `seen`."""
    jobs = [job for job in client.jobs() if job["name"] == name]
    events: list[dict[str, Any]] = []
    now = replace(seen, changed=False)
    for job in sorted(jobs, key=lambda job: int(job["start-time"])):
        about = {"job_id": job["jid"], "name": name}
        for found in _savepoints(client, job["jid"], seen.savepoint_ms):
            at_ms = int(found["latest_ack_timestamp"])
            now = replace(now, savepoint_ms=max(now.savepoint_ms, at_ms), changed=True)
            events.append({"kind": "savepoint", **about, "location": found["external_path"], "at_ms": at_ms})
        if job["state"] == "FAILED" and int(job["end-time"]) > seen.failed_ms:
            at_ms = int(job["end-time"])
            now = replace(now, failed_ms=max(now.failed_ms, at_ms), changed=True)
            events.append({"kind": "failed", **about, "cause": root_cause(client, job["jid"])[0], "at_ms": at_ms})
    running = [job for job in jobs if job["state"] == "RUNNING"]
    if running:
        watermark = client.summary(running[0]["jid"])["watermark"]
        closed = None if watermark is None else int(watermark) // (window_seconds * 1000) * (window_seconds * 1000)
        if closed is not None and (seen.window_ms is None or closed > seen.window_ms):
            now = replace(now, window_ms=closed, changed=True)
            if seen.window_ms is not None:
                about = {"job_id": running[0]["jid"], "name": name}
                events.append({"kind": "window", **about, "window_end": closed, "after": seen.window_ms})
    return events, now


def _savepoints(client: RestClient, job_id: str, after_ms: int) -> list[dict[str, Any]]:
    history = client.checkpoints(job_id)["history"]
    found = [c for c in history if c["is_savepoint"] and c["status"] == "COMPLETED"]
    return sorted(
        (c for c in found if int(c["latest_ack_timestamp"]) > after_ms), key=lambda c: int(c["latest_ack_timestamp"])
    )
