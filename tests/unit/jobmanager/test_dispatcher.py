"""What the dispatcher does with data of ended jobs that no job depends on."""

from __future__ import annotations

import asyncio
import threading

import msgspec
import pytest
from tests.unit.jobmanager.conftest import JOB, make_graph

from penstock.checkpoint.ha_records import (
    JobRecord,
    UpgradeRefusal,
    read_archives,
    read_records,
    read_refusals,
    write_archive,
    write_record,
    write_refusal,
)
from penstock.checkpoint.job_lease import this_process
from penstock.config.settings import ClusterSettings, RestartStrategy
from penstock.core.clock import ManualClock
from penstock.core.errors import NotFoundError, StorageError
from penstock.core.rand import SeededRand
from penstock.graph.job_graph import encode_graph
from penstock.jobmanager.cluster.taskmanagers import TaskManagers
from penstock.jobmanager.dispatcher import Dispatcher, DispatcherParts
from penstock.jobmanager.jobs.job_archive import JobArchive
from penstock.jobmanager.jobs.job_views import checkpoints_of, summary_of
from penstock.jobmanager.messages.views import ExceptionView

GRAPH = make_graph()
RECORD = JobRecord(
    job_id=JOB, name="job", run_id="r", token="", submitted_ms=0, graph=encode_graph(GRAPH),
    ended="FAILED", ended_ms=9, error="it failed",
)  # fmt: skip
OTHER = msgspec.structs.replace(RECORD, job_id="b" * 32)
REFUSAL = UpgradeRefusal(token="t", file="v2.py", at_ms=3, reason="it has another sink")
FAILURE = ExceptionView(at_ms=5, error="archived", worker_id="worker-1", taskmanager_id="tm")


def archived(record):
    """Write an ended job with one failure in its archive."""
    return JobArchive(
        generation=record.generation, summary=summary_of(record, GRAPH, None, 0), vertices=(), timestamps={},
        checkpoints=checkpoints_of(record, None), exceptions=(FAILURE,), workers=(),
    )  # fmt: skip


def write_ended(store, *records):
    for record in records:
        write_record(store, record)
        write_archive(store, record.job_id, msgspec.json.encode(archived(record)))


@pytest.fixture
async def dispatcher_of(store):
    """Return a maker of dispatchers over the store; at the end, none of them has reported an internal error."""
    made, faults = [], []

    def make():
        clock = ManualClock()
        parts = DispatcherParts(
            ha_store=store,
            holder=this_process("holder"),
            generation=1,
            taskmanagers=TaskManagers("jm", 1, ClusterSettings(), clock),
            clock=clock,
            rand=SeededRand(1),
            leadership_lost=faults.append,
            fault=faults.append,
            rpc_address=lambda: "",
            jobmanager_id="jm",
        )
        made.append((Dispatcher(parts), parts))
        return made[-1]

    yield make
    for dispatcher, _ in made:
        await dispatcher.close()
    assert faults == []


async def settled(dispatcher):
    """Wait for the work that the dispatcher has begun."""
    while dispatcher._tasks:
        await asyncio.wait(dispatcher._tasks)


def failing(*keys):
    """Return a fault hook by which these keys, and lists of these prefixes, cannot be read."""

    def fault(operation, key, phase):
        if operation in {"read", "list"} and key in keys:
            raise StorageError(f"no answer about {key}")

    return fault


async def run_to_its_end(store, dispatcher_of, tmp_path, fault=failing()):  # noqa: B008 - it is not changed
    """Run a job whose source cannot be imported; return when its end is recorded."""
    graph = encode_graph(make_graph(checkpoint_root=str(tmp_path), restart=RestartStrategy(kind="none")))
    write_record(store, msgspec.structs.replace(RECORD, graph=graph, ended="", ended_ms=-1, error=""))
    dispatcher, _ = dispatcher_of()
    await dispatcher.recover()
    store.fault = fault
    await settled(dispatcher)
    await dispatcher._jobs[JOB].driver.ended.wait()
    await settled(dispatcher)


def test_a_file_that_cannot_be_read_is_logged_and_hides_no_other(store, caplog):
    write_ended(store, RECORD, OTHER)
    for record in (RECORD, OTHER):
        write_refusal(store, record.job_id, REFUSAL)
    store.fault = failing(f"archives/{JOB}.json", f"refusals/{JOB}.json")
    assert read_refusals(store) == {OTHER.job_id: REFUSAL}
    assert list(read_archives(store, [JOB, OTHER.job_id], JobArchive)) == [OTHER.job_id]
    assert caplog.text.count("could not be read: no answer about") == 2
    store.fault = failing("refusals/")
    assert read_refusals(store) == {}
    store.fault = failing()
    store.put(f"refusals/{JOB}.json", b'{"token": "\xff"}')
    assert read_refusals(store) == {OTHER.job_id: REFUSAL}
    assert "of another version or damaged" in caplog.text


async def test_a_recovery_needs_neither_archives_nor_refused_upgrades(store, dispatcher_of):
    write_ended(store, RECORD, OTHER)
    write_refusal(store, OTHER.job_id, REFUSAL)
    write_refusal(store, JOB, REFUSAL)
    dispatcher, _ = dispatcher_of()
    refuses = failing(f"archives/{JOB}.json", f"refusals/{JOB}.json")
    forgotten = "c" * 32
    write_ended(store, msgspec.structs.replace(RECORD, job_id=forgotten))
    write_refusal(store, forgotten, REFUSAL)

    def fault(operation, key, phase):
        if key == f"archives/{forgotten}.json":
            dispatcher._jobs.pop(forgotten, None)  # as when another job ends meanwhile
        refuses(operation, key, phase)

    store.fault = fault
    await dispatcher.recover()
    await settled(dispatcher)
    assert dispatcher.changes.view(OTHER.job_id).reason.endswith(REFUSAL.reason)
    assert dispatcher.exceptions(OTHER.job_id) == (FAILURE,)
    assert [failure.error for failure in dispatcher.exceptions(JOB)] == ["it failed"]
    assert dispatcher.changes.view(JOB) is None


async def test_the_end_of_a_job_is_recorded_though_its_archive_cannot_be_made(
    store, dispatcher_of, tmp_path, monkeypatch, caplog
):
    def fail(*_):
        raise RuntimeError("an error in a view")

    monkeypatch.setattr("penstock.jobmanager.dispatcher.archive_of", fail)
    await run_to_its_end(store, dispatcher_of, tmp_path)
    (record,) = read_records(store)
    assert record.ended == "FAILED"
    assert "Traceback" in caplog.text
    assert "an error in a view" in caplog.text


async def test_the_end_of_a_job_is_recorded_while_its_archive_is_written(store, dispatcher_of, tmp_path):
    recorded, loop_thread = threading.Event(), threading.get_ident()
    before, threads = [], []

    def fault(operation, key, phase):
        if operation == "put" and key.startswith("archives/"):
            threads.append(threading.get_ident())
            before.append(recorded.wait(5))
        elif operation == "put" and (key, phase) == (f"jobs/{JOB}.json", "after"):
            recorded.set()

    await run_to_its_end(store, dispatcher_of, tmp_path, fault)
    assert before[0], "the record waits for the archive"
    assert loop_thread not in threads
    assert list(read_archives(store, [JOB], JobArchive)) == [JOB]


async def test_the_log_of_a_worker_that_an_archive_names_is_found(store, dispatcher_of, monkeypatch):
    async def log_tail(taskmanager_id, worker_id):
        return f"log of {worker_id} in {taskmanager_id}"

    write_ended(store, RECORD)
    dispatcher, parts = dispatcher_of()
    monkeypatch.setattr(parts.taskmanagers, "log_tail", log_tail)
    await dispatcher.recover()
    await settled(dispatcher)
    assert await dispatcher.worker_log("worker-1") == "log of worker-1 in tm"
    with pytest.raises(NotFoundError, match="no worker worker-2"):
        await dispatcher.worker_log("worker-2")
