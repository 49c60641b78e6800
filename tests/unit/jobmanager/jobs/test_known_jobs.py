"""Requests to a job that does not run: an ended job refuses them, one that has not started may take them later."""

import msgspec
import pytest

from penstock.checkpoint.ha_records import JobRecord
from penstock.config.settings import JobSettings
from penstock.core.errors import PenstockError, UsageError
from penstock.graph.job_graph import JobGraph
from penstock.jobmanager.jobs.known_jobs import KnownJob
from penstock.jobmanager.messages.events import CancelRequested

RECORD = JobRecord(job_id="a" * 32, name="orders", run_id="", token="", submitted_ms=0, graph=b"")
GRAPH = JobGraph(name="orders", vertices=(), edges=(), settings=JobSettings())


def test_an_ended_job_refuses():
    with pytest.raises(UsageError, match=r"'orders' .* is FAILED"):
        KnownJob(msgspec.structs.replace(RECORD, ended="FAILED"), GRAPH).post(CancelRequested())


def test_a_job_that_has_not_started_may_be_asked_again():
    with pytest.raises(PenstockError, match="has not started yet") as refused:
        KnownJob(RECORD, GRAPH).post(CancelRequested())
    assert not isinstance(refused.value, UsageError)
