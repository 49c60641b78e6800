"""Requests an upgrade and waits for its outcome, across restarts of the JobManager; called by `client.handle`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from penstock.client.lasting import operation_of
from penstock.config.settings import parse_duration_ms
from penstock.core.errors import PenstockError
from penstock.graph.job_graph import encode_graph

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.client.rest_client import RestClient, UpgradeOptions
    from penstock.core.clock import Clock
    from penstock.graph.job_graph import JobGraph

_POLL_MS = 200.0
#: Grace period beyond the deadlines of checkpoint and trial: for starting, publishing, rolling back.
_GRACE_MS = 900_000.0


class RunningJob(Protocol):
    """The running job that an upgrade replaces; implemented by `client.handle.JobHandle`."""

    @property
    def client(self) -> RestClient:
        """The client of its cluster."""

    @property
    def job_id(self) -> str:
        """The id of the job."""

    @property
    def name(self) -> str:
        """The name of the job."""

    @property
    def clock(self) -> Clock:
        """The clock for time-outs."""


def asked(job: RunningJob, graph: JobGraph, token: str, options: UpgradeOptions) -> str:
    """Ask for an upgrade and return the id of the request at once: the token, if one is given.

    The graph is sent with the states that its operators declare, so that a misfit is refused before the
    old version stops.

    Raises:
        PenstockError: the request was refused.
    """
    from penstock.snapshots.access.declared import with_states

    sent = dict(options)
    if sent.get("target"):
        sent["target"] = _located(str(sent["target"]))
    return job.client.upgrade(job.job_id, encode_graph(with_states(graph)), token=token, **sent)  # type: ignore[arg-type]


def upgraded(
    job: RunningJob,
    graph: JobGraph,
    token: str,
    on_poll: Callable[[dict[str, Any]], None] | None,
    options: UpgradeOptions,
) -> str:
    """Wait until the new version is healthy; return the savepoint's URI (empty if from a checkpoint).

    Raises:
        PenstockError: it is unhealthy and the old version runs (or the new one is kept, as requested); or a timeout.
    """
    wait_ms = 2 * parse_duration_ms(str(options.get("deadline") or "5m"), "deadline") + _GRACE_MS
    client, job_id = job.client, job.job_id

    def status() -> dict[str, Any]:
        answer = client.upgrade_status(job_id, token)
        if on_poll is not None and answer["status"]["id"] != "COMPLETED":
            on_poll(client.newest_upgrade(job_id))
        return answer

    operation = operation_of(lambda: asked(job, graph, token, options), status, job.clock, wait_ms, _POLL_MS)
    if operation is not None:
        return _verdict(job.name, operation)
    msg = f"the outcome of the upgrade of job {job.name} is unknown: none was reported within {wait_ms / 1000:.0f} s"
    raise PenstockError(msg, hint="see what it does with `penstock story`")


def _verdict(name: str, operation: dict[str, Any]) -> str:
    if "failure-cause" in operation:
        msg = f"job {name} was not upgraded: {operation['failure-cause'].get('stack-trace')}"
        more = "see `penstock story`, and the new version's failures with `penstock show`"
        raise PenstockError(msg, hint="" if msg.endswith(")") else more)
    return str(operation.get("location", ""))


def _located(uri: str) -> str:
    return uri if "://" in uri else str(Path(uri).expanduser().absolute())
