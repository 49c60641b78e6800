"""Samples every job with the autoscaler on, logs the decision of `jobmanager.change.vertex_scaling`, and rescales.

Part of `jobmanager.dispatcher`, called from the JobManager's event loop; it never blocks. It reads the
metrics that workers send in any case and starts the same rescale as a user. A dry run only logs.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.config.settings import AutoscalerSettings
from penstock.core.errors import PenstockError
from penstock.core.logs import job_extra
from penstock.graph.rescale import RescaleTo
from penstock.jobmanager.change.vertex_scaling import Decision, RestartCost, Scaler, VertexMetrics
from penstock.jobmanager.deploy.job_status import JobStatus
from penstock.jobmanager.deploy.job_steps import Step
from penstock.jobmanager.jobs.known_jobs import KnownJob, Operations
from penstock.jobmanager.master.job_master import JobMaster

#: Interval between two samples of a job; workers send metrics once a second.
_EVERY_MS = 1_000
_KEPT = 100
#: Rates and lags above this, and NaN, are ignored.
_MOST = 1e15
_LOGGER = logging.getLogger("penstock.jobs")


@dataclass(slots=True)
class ScalingLogEntry:
    """A decision, the time span in which it stayed the same, and its outcome."""

    first_ms: int
    last_ms: int
    decision: Decision
    outcome: str = ""


@dataclass(slots=True)
class _Watched:
    settings: AutoscalerSettings
    scaler: Scaler
    cost: RestartCost
    log: deque[ScalingLogEntry] = field(default_factory=lambda: deque(maxlen=_KEPT))
    request_id: str = ""
    #: The job's vertices and their parallelism at the previous look.
    shape: tuple[tuple[str, int], ...] = ()


class Autoscaler:
    """The autoscaler of all jobs of this JobManager."""

    def __init__(
        self,
        jobs: dict[str, KnownJob],
        operations: Operations,
        slots: Callable[[KnownJob], int],
        rescale: Callable[[KnownJob, RescaleTo], str],
    ) -> None:
        """`slots` returns the slots a job holds or could get; `rescale` starts one and returns its request id."""
        self._jobs, self._operations, self._slots, self._rescale = jobs, operations, slots, rescale
        self._watched: dict[str, _Watched] = {}
        self._sampled_ms = 0

    def sample(self, now_ms: int) -> None:
        """Sample all jobs at most once per interval; an error in one job does not affect the others."""
        if 0 <= now_ms - self._sampled_ms < _EVERY_MS:
            return
        self._sampled_ms = now_ms
        wanted = {i: job for i, job in self._jobs.items() if job.graph.settings.autoscaler.enabled}
        self._watched = {i: watched for i, watched in self._watched.items() if i in wanted}
        for job_id, job in wanted.items():
            master = job.driver.master if job.driver is not None else None
            if master is None or job.record.ended:
                continue
            watched = self._watch(job_id, job)
            try:
                self._sample_job(job, master, watched, now_ms)
            except Exception:
                _LOGGER.exception("the autoscaler failed on job %s", job_id, extra=job_extra(job_id, job.record.name))
                watched.scaler.failed(now_ms)

    def document(self, job: KnownJob) -> dict[str, Any]:
        """Return the settings, the restart cost and the decisions of a job, newest first, as JSON values."""
        settings = job.graph.settings.autoscaler
        watched = self._watched.get(job.record.job_id)
        cost = watched.cost if watched is not None else RestartCost(settings.restart_time_ms)
        log = reversed(watched.log) if watched is not None else ()
        return {
            "jid": job.record.job_id,
            "name": job.record.name,
            "enabled": settings.enabled,
            "dry-run": settings.dry_run,
            "restart-ms": round(cost.cost_ms),
            "restarts-measured": cost.measured,
            "decisions": [_shown(entry) for entry in log],
        }

    def _watch(self, job_id: str, job: KnownJob) -> _Watched:
        settings = job.graph.settings.autoscaler
        known = self._watched.get(job_id)
        if known is None or known.settings != settings:
            known = _Watched(settings, Scaler(settings), RestartCost(settings.restart_time_ms))
            self._watched[job_id] = known
        return known

    def _sample_job(self, job: KnownJob, master: JobMaster, watched: _Watched, now_ms: int) -> None:
        running = master.status.state is JobStatus.RUNNING and master.step is Step.RUNNING
        since_ms = master.status.entered_ms[JobStatus.RUNNING] if running else None
        periodic = job.graph.settings.checkpoint_interval_ms is not None
        watched.cost.sample(
            now_ms,
            running_since_ms=since_ms,
            checkpoints=master.checkpointing.history.completed,
            periodic=periodic,
        )
        shape = tuple((v.id, v.parallelism) for v in job.graph.vertices)
        if watched.shape and watched.shape != shape:
            watched.scaler.changed(now_ms)
        watched.shape = shape
        self._follow(watched, master, now_ms)
        changing = master.job_change.rescaling.phase is not None or master.job_change.upgrading.phase is not None
        if since_ms is None or changing or watched.request_id or watched.cost.pending:
            watched.scaler.discard_samples()
            return
        samples = vertex_metrics_of(job, master)
        if _hangs(watched, master, now_ms):
            samples = None
        if samples is None or now_ms - since_ms < watched.settings.stabilization_interval_ms:
            watched.scaler.discard_samples()
            return
        watched.scaler.sample(samples, now_ms)
        decision = watched.scaler.decide(job.graph, self._slots(job), watched.cost.cost_ms, now_ms)
        entry = _log(watched.log, decision, now_ms)
        if entry.first_ms == now_ms and decision.kind in ("rescale", "not-worth"):
            would = "would do: " if watched.settings.dry_run and decision.kind == "rescale" else ""
            master.event_log.add(now_ms, "autoscaler", would + decision.text)
        users_first = master.checkpointing.busy or master.checkpointing.savepoint_obstacle
        if decision.kind == "rescale" and not watched.settings.dry_run and not users_first:
            self._act(job, watched, entry, now_ms)

    def _act(self, job: KnownJob, watched: _Watched, entry: ScalingLogEntry, now_ms: int) -> None:
        try:
            watched.request_id = self._rescale(job, RescaleTo(vertices=entry.decision.change))
            entry.outcome = "under way"
        except PenstockError as error:
            entry.outcome = str(error)
            watched.scaler.failed(now_ms)

    def _follow(self, watched: _Watched, master: JobMaster, now_ms: int) -> None:
        """Check the outcome of the rescale that was started."""
        if not watched.request_id:
            return
        if not self._operations.known(watched.request_id):
            watched.request_id, watched.log[-1].outcome = "", "unknown: the request was evicted by newer ones"
            return
        status = self._operations.status(watched.request_id)
        if status.status == "IN_PROGRESS":
            return
        watched.request_id = ""
        watched.log[-1].outcome = "done" if status.status == "COMPLETED" else status.error
        if status.status != "COMPLETED":
            watched.scaler.failed(now_ms, retry_soon=master.job_change.rescaling.retry_soon)


def _hangs(watched: _Watched, master: JobMaster, now_ms: int) -> bool:
    """Return whether a function of the user has not returned for half of the window: it is always busy by then.

    More subtasks are no remedy, and no rescale would get its checkpoint.
    """
    least_ms = watched.settings.metrics_window_ms / 2
    return any(call.at and now_ms - call.since_ms >= least_ms for call in master.slow_call_tracker.ongoing)


def vertex_metrics_of(job: KnownJob, master: JobMaster) -> tuple[VertexMetrics, ...] | None:
    """Return the newest metrics of each vertex in topological order, or None if a subtask has not reported yet."""
    inputs: dict[str, dict[str, None]] = {}
    for edge in job.graph.edges:
        inputs.setdefault(edge.target, {})[edge.source] = None
    found: dict[str, VertexMetrics] = {}
    for vertex in job.graph.vertices:
        reported = [master.metrics.get(f"{vertex.id}/{i}") for i in range(vertex.parallelism)]
        metrics = [values for values in map(_usable_metrics, reported) if "busyTimeMsPerSecond" in values]
        if len(metrics) < vertex.parallelism:
            return None
        source = vertex.id not in inputs
        rows_out = _sum(metrics, "numRecordsOutPerSecond")
        found[vertex.id] = VertexMetrics(
            id=vertex.id,
            name=vertex.name,
            parallelism=vertex.parallelism,
            inputs=tuple(inputs.get(vertex.id, ())),
            rows_in=rows_out if source else _sum(metrics, "numRecordsInPerSecond"),
            rows_out=rows_out,
            busy=_sum(metrics, "busyTimeMsPerSecond") / 1000 / len(metrics),
            back_pressured=_sum(metrics, "backPressuredTimeMsPerSecond") / 1000 / len(metrics),
            lag=_sum(metrics, "recordsLag") if source and all(map(_knows_lag, metrics)) else None,
        )
    return _in_order(found)


def _knows_lag(metrics: Mapping[str, float]) -> bool:
    return "recordsLag" in metrics and not metrics.get("recordsLagUnknown")


def _usable_metrics(values: Mapping[str, float] | None) -> dict[str, float]:
    """Return the usable metrics: those of a connector may hold any value."""
    return {name: value for name, value in (values or {}).items() if abs(value) <= _MOST}


def _in_order(found: dict[str, VertexMetrics]) -> tuple[VertexMetrics, ...]:
    ordered: dict[str, VertexMetrics] = {}
    while len(ordered) < len(found):
        ready = [v for i, v in found.items() if i not in ordered and all(u in ordered for u in v.inputs)]
        ordered.update((v.id, v) for v in ready)
    return tuple(ordered.values())


def _sum(metrics: Iterable[dict[str, float]], name: str) -> float:
    return sum(values.get(name, 0.0) for values in metrics)


def _log(log: deque[ScalingLogEntry], decision: Decision, now_ms: int) -> ScalingLogEntry:
    """Log a decision and return its entry: an unchanged decision updates the last entry."""
    last = log[-1] if log else None
    if (
        last is not None
        and not last.outcome
        and last.decision.kind == decision.kind
        and last.decision.change == decision.change
    ):
        last.last_ms, last.decision = now_ms, decision
        return last
    entry = ScalingLogEntry(now_ms, now_ms, decision)
    log.append(entry)
    return entry


def _shown(entry: ScalingLogEntry) -> dict[str, Any]:
    decision = entry.decision
    return {
        "at": entry.first_ms,
        "until": entry.last_ms,
        "kind": decision.kind,
        "text": decision.text,
        "outcome": entry.outcome,
        "vertices": {
            vertex_id: {
                "name": need.name,
                "parallelism": need.parallelism,
                "wanted": decision.change.get(vertex_id, need.parallelism),
                "true-rate": round(need.true_rate, 1),
                "wanted-rate": round(need.target_rate, 1),
                "utilization": round(need.utilization, 4),
            }
            for vertex_id, need in decision.targets.items()
        },
    }
