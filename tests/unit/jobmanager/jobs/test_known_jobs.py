"""Requests to a job that does not run: an ended job refuses them, one that has not started may take them later."""

import msgspec
import pytest

from penstock.checkpoint.ha_records import DamagedRecord, JobRecord
from penstock.config.settings import JobSettings
from penstock.core.errors import NotStartedError, UsageError
from penstock.graph.job_graph import JobGraph
from penstock.jobmanager.jobs.known_jobs import KnownJob, suspended_job
from penstock.jobmanager.messages.events import CancelRequested

RECORD = JobRecord(job_id="a" * 32, name="orders", run_id="", token="", submitted_ms=0, graph=b"")
GRAPH = JobGraph(name="orders", vertices=(), edges=(), settings=JobSettings())


def test_an_ended_job_refuses():
    with pytest.raises(UsageError, match=r"'orders' .* is FAILED"):
        KnownJob(msgspec.structs.replace(RECORD, ended="FAILED"), GRAPH).post(CancelRequested())


def test_a_job_that_has_not_started_may_be_asked_again():
    with pytest.raises(NotStartedError, match=r"has not started yet .*repeat the request"):
        KnownJob(RECORD, GRAPH).post(CancelRequested())


def test_a_suspended_job_refuses_and_says_why():
    damaged = DamagedRecord(job_id="b" * 32, name="bills", error="jobs/b.json cannot be read")
    with pytest.raises(UsageError, match=r"job 'bills' is suspended \(jobs/b.json cannot be read\)"):
        suspended_job(damaged).post(CancelRequested())
