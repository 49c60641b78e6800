"""The recorded jobs that a standby shows: read once for all requests, and again when they are old."""

import asyncio
import threading

import msgspec
import pytest
from tests.support.waiting import DEADLINE_S
from tests.unit.jobmanager.conftest import make_graph

from penstock.checkpoint.ha_records import JobRecord, write_record
from penstock.core.clock import ManualClock
from penstock.core.errors import StorageError, UnreachableError
from penstock.graph.job_graph import encode_graph
from penstock.jobmanager.jobs.suspended_jobs import SuspendedJobs

RECORD = JobRecord(job_id="a" * 32, name="orders", run_id="r", token="", submitted_ms=1, graph=b"")
RECORD = msgspec.structs.replace(RECORD, graph=encode_graph(make_graph()))


async def test_requests_share_a_read_until_it_is_old(store):
    clock, lists = ManualClock(), []
    store.fault = lambda operation, key, _: lists.append(key) if operation == "list" else None
    write_record(store, RECORD)
    jobs = SuspendedJobs(store, clock)
    await asyncio.gather(jobs.jobs(), jobs.jobs(), jobs.detail("orders"))
    once = len(lists)
    write_record(store, msgspec.structs.replace(RECORD, ended="CANCELED"))
    assert [job.state for job in await jobs.jobs()] == ["SUSPENDED"]
    assert len(lists) == once
    clock.advance(1_000)
    assert [job.state for job in await jobs.jobs()] == ["CANCELED"]
    assert len(lists) == 2 * once


async def test_a_slow_store_is_reported_and_read_once(store):
    write_record(store, RECORD)
    released, lists = threading.Event(), []

    def slow(operation, key, phase):
        if (operation, phase) == ("list", "before"):
            lists.append(key)
            assert released.wait(DEADLINE_S)

    store.fault = slow
    jobs = SuspendedJobs(store, ManualClock(), read_s=0.0)
    for _ in range(2):
        with pytest.raises(UnreachableError, match=r"does not answer .*try again"):
            await jobs.jobs()
    reading = jobs._reading
    released.set()
    await reading
    assert [job.state for job in await jobs.jobs()] == ["SUSPENDED"]
    assert lists == ["jobs/"]


async def test_an_error_is_reported_and_the_next_request_reads_again(store):
    write_record(store, RECORD)
    errors = [StorageError("no answer")]

    def failing(operation, _key, _phase):
        if operation == "list" and errors:
            raise errors.pop()

    store.fault = failing
    jobs = SuspendedJobs(store, ManualClock())
    with pytest.raises(StorageError, match="no answer"):
        await jobs.jobs()
    assert [job.name for job in await jobs.jobs()] == ["orders"]
