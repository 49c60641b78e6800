"""Samples every running job every two seconds, so that the web interface can show since when something is slow.

Started by `rest.server.http_server` beside the API; `rest.server.app` adds its routes. A sample uses data that the
JobManager already has: no worker is queried.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Any

from penstock.rest.diagnose.diagnosis import (
    Finding,
    FindingHistory,
    JobLoad,
    LoadHistory,
    checkpoint_findings,
    diagnose,
    load_of,
    mean_of,
    ordered,
    row_findings,
)
from penstock.rest.flink.documents import progress

if TYPE_CHECKING:
    from fastapi import APIRouter

    from penstock.core.clock import Clock
    from penstock.jobmanager.dispatcher import Dispatcher

EVERY_MS = 2_000
#: Number of samples that are averaged.
_TOGETHER = 8


class _Job:
    """The samples and findings of one job."""

    def __init__(self) -> None:
        self.recent: deque[JobLoad] = deque(maxlen=_TOGETHER)
        self.history = LoadHistory()
        self.since = FindingHistory()
        self.findings: list[Finding] = []


class JobWatch:
    """The samples of all running jobs, and the last ones of ended jobs."""

    def __init__(self, dispatcher: Dispatcher, clock: Clock) -> None:
        """Start without samples."""
        self._dispatcher, self._clock = dispatcher, clock
        self._jobs: dict[str, _Job] = {}
        self._looked_ms = -EVERY_MS

    async def run(self, ended: asyncio.Event) -> None:
        """Sample until `ended` is set."""
        while not ended.is_set():
            self.sample()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), EVERY_MS / 1000)

    def sample(self) -> None:
        """Sample all jobs, unless that was done a moment ago."""
        now = self._clock.monotonic_ms()
        if now - self._looked_ms < EVERY_MS / 2:
            return
        self._looked_ms = int(now)
        known = self._dispatcher.jobs()
        for summary in known:
            job = self._jobs.get(summary.job_id)
            if job is None:
                job = self._jobs[summary.job_id] = _Job()
            if not (summary.terminal and job.findings and job.recent[-1].state == summary.state):
                self._sample_job(job, summary.job_id)
        ids = {summary.job_id for summary in known}
        self._jobs = {job_id: job for job_id, job in self._jobs.items() if job_id in ids}

    def health(self, job: str) -> dict[str, Any]:
        """Return the findings and chart series of a job, given by id or name.

        Raises:
            NotFoundError: no such job.
        """
        self.sample()
        job_id = self._dispatcher.resolve(job)
        if job_id not in self._jobs:
            self._sample_job(self._jobs.setdefault(job_id, _Job()), job_id)
        found = self._jobs[job_id]
        findings = [finding.document() for finding in found.findings]
        return {"now": self._clock.now_ms(), "interval": EVERY_MS, "findings": findings, **found.history.document()}

    def headlines(self) -> dict[str, Any]:
        """Return the first finding of every job, by id."""
        self.sample()
        return {"jobs": {job_id: job.findings[0].document() for job_id, job in self._jobs.items() if job.findings}}

    def _sample_job(self, job: _Job, job_id: str) -> None:
        now_ms, detail = self._clock.now_ms(), self._dispatcher.detail(job_id)
        load = load_of(detail)
        job.recent.append(load)
        job.history.add(load, now_ms)
        mean = mean_of(job.recent)
        findings, checkpoints = diagnose(mean), self._dispatcher.checkpoints(job_id)
        if load.state == "RUNNING" and load.measured:
            findings += job.since.stalled_sources(mean, now_ms)
            findings += checkpoint_findings(checkpoints, detail, now_ms)
        findings += row_findings(progress(detail, checkpoints), now_ms)
        job.findings = job.since.stamped(ordered(findings), now_ms, detail.timestamps.get("RUNNING", 0))


def add_routes(router: APIRouter, watch: JobWatch) -> None:
    """Add the routes of the web interface that Flink does not have."""

    @router.get("/penstock/health")
    async def headlines() -> dict[str, Any]:
        return watch.headlines()

    @router.get("/penstock/jobs/{job_id}/health")
    async def health(job_id: str) -> dict[str, Any]:
        return watch.health(job_id)
