"""Errors of a store: in data that no job depends on, and in one job, which concern no other job."""

from __future__ import annotations

import asyncio
import re
import shutil
import threading

import msgspec
import pytest
from tests.support.waiting import DEADLINE_S
from tests.unit.jobmanager.conftest import JOB, make_graph

from penstock.checkpoint.ha_records import (
    JobRecord,
    UpgradeRefusal,
    read_archives,
    read_records,
    read_refusals,
    write_archive,
    write_event_log,
    write_record,
    write_refusal,
)
from penstock.checkpoint.job_lease import LeaseRecord, this_process
from penstock.config.settings import ClusterSettings, RestartStrategy
from penstock.core.clock import ManualClock
from penstock.core.errors import (
    LeadershipLostError,
    MetadataDamagedError,
    NotFoundError,
    SnapshotDamagedError,
    StorageError,
    UsageError,
)
from penstock.core.event_log import Entry
from penstock.core.rand import SeededRand
from penstock.graph.job_graph import encode_graph
from penstock.graph.task_deployment import Attempts
from penstock.jobmanager.cluster.taskmanagers import TaskManagers
from penstock.jobmanager.config import JobManagerLimits
from penstock.jobmanager.dispatcher import Dispatcher, DispatcherParts
from penstock.jobmanager.jobs.job_archive import JobArchive
from penstock.jobmanager.jobs.job_store import JobStore
from penstock.jobmanager.jobs.job_views import checkpoints_of, summary_of
from penstock.jobmanager.jobs.recorded_jobs import SubmitOptions
from penstock.jobmanager.master.job_master import JobMaster
from penstock.jobmanager.messages.views import ExceptionView

GRAPH = make_graph()
RECORD = JobRecord(
    job_id=JOB, name="job", run_id="r", token="", submitted_ms=0, graph=encode_graph(GRAPH),
    ended="FAILED", ended_ms=9, error="it failed",
)  # fmt: skip
OTHER = msgspec.structs.replace(RECORD, job_id="b" * 32)
ELSEWHERE = {"id": "other", "host": "elsewhere", "machine": "", "pid": 1}
RELEASED = msgspec.json.encode(
    LeaseRecord(holder=this_process("holder"), job_id=JOB, generation=0, expires_ms=0, released=True)
)
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
    """Return a maker of dispatchers over the store; at the end, none of them has lost its leadership."""
    made, lost = [], []

    def make():
        clock = ManualClock()
        parts = DispatcherParts(
            ha_store=store,
            holder=this_process("holder"),
            generation=1,
            taskmanagers=TaskManagers("jm", 1, ClusterSettings(), clock),
            clock=clock,
            rand=SeededRand(1),
            leadership_lost=lost.append,
            rpc_address=lambda: "",
            jobmanager_id="jm",
            limits=JobManagerLimits(recover_retry_ms=1),
        )
        made.append((Dispatcher(parts), parts))
        return made[-1]

    yield make
    for dispatcher, _ in made:
        await dispatcher.close()
    assert lost == []


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


class WithoutSplits:
    """A source whose enumerator finds nothing, so that its job waits for slots."""

    def create_enumerator(self, spec, *, first_run):
        return self

    def create_reader(self, spec, context):
        raise NotImplementedError

    def discover(self, known):
        return ()

    def close(self):
        pass


def write_running(store, record, root, **settings):
    """Write a job that an earlier leader has accepted, and its lease."""
    graph = msgspec.structs.replace(make_graph(checkpoint_root=str(root), **settings), name=record.name)
    write_record(store, msgspec.structs.replace(record, graph=encode_graph(graph), ended="", ended_ms=-1, error=""))
    (root / record.name).mkdir()
    (root / record.name / "lease.json").write_bytes(RELEASED)


async def run_to_its_end(store, dispatcher_of, tmp_path, fault=failing()):  # noqa: B008 - it is not changed
    """Run a job whose source cannot be imported; return when its end is recorded."""
    write_running(store, RECORD, tmp_path, restart=RestartStrategy(kind="none"))
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
    assert dispatcher.upgrades.view(OTHER.job_id).reason.endswith(REFUSAL.reason)
    assert dispatcher.exceptions(OTHER.job_id) == (FAILURE,)
    assert [failure.error for failure in dispatcher.exceptions(JOB)] == ["it failed"]
    assert dispatcher.upgrades.view(JOB) is None


async def test_the_end_of_a_job_is_recorded_though_its_archive_cannot_be_made(
    store, dispatcher_of, tmp_path, monkeypatch, caplog
):
    def fail(*_):
        raise RuntimeError("an error in a view")

    monkeypatch.setattr("penstock.jobmanager.dispatcher.archive_of", fail)
    await run_to_its_end(store, dispatcher_of, tmp_path)
    (record,) = read_records(store)[0]
    assert record.ended == "FAILED"
    assert "Traceback" in caplog.text
    assert "an error in a view" in caplog.text


async def test_the_end_of_a_job_is_recorded_while_its_archive_is_written(store, dispatcher_of, tmp_path):
    recorded, loop_thread = threading.Event(), threading.get_ident()
    before, threads = [], []

    def fault(operation, key, phase):
        if operation == "put" and key.startswith("archives/"):
            threads.append(threading.get_ident())
            before.append(recorded.wait(DEADLINE_S))
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


# --- an error of the store in one job -------------------------------------------------------------------------------


@pytest.fixture
async def started(store, dispatcher_of, tmp_path):
    """Return a dispatcher with two jobs that wait for slots, and the folder of the first."""
    for record in (RECORD, msgspec.structs.replace(OTHER, name="other")):
        write_running(store, record, tmp_path, factory=f"{__name__}:WithoutSplits")
    dispatcher, _ = dispatcher_of()
    await dispatcher.recover()
    await settled(dispatcher)
    # a driver writes its attempt into the lease in a thread: a test that deletes the file meanwhile would get it back
    for job in dispatcher._jobs.values():
        while writing := [task for task in job.driver._tasks if task.get_coro().__name__ != "_renew_lease"]:
            await asyncio.wait(writing)
    yield dispatcher, tmp_path / "job"
    assert dispatcher.summary("other").state == "CREATED", dispatcher.exceptions("other")[0].error


def replaced_by_a_file(folder):
    folder.rename(folder.with_name("moved"))
    folder.touch()


async def test_a_job_is_cancelled_although_its_store_has_failed(started, store, caplog):
    dispatcher, folder = started
    replaced_by_a_file(folder)
    await dispatcher.cancel(JOB)
    await dispatcher._jobs[JOB].driver.ended.wait()
    await settled(dispatcher)
    assert [record.ended for record in read_records(store)[0]] == ["CANCELED", ""]
    assert f"the lease of the ended job {JOB} was not released" in caplog.text
    assert "Traceback" in caplog.text


@pytest.mark.parametrize("known", [False, True], ids=["of a new leader", "of another driver"])
async def test_a_job_is_cancelled_before_its_recovery_has_started_it(
    store, dispatcher_of, tmp_path, monkeypatch, known
):
    loop, seal = asyncio.get_running_loop(), JobStore.seal
    slow, sealing, released = [not known], asyncio.Event(), threading.Event()

    def slow_seal(*arguments):
        if slow[0]:
            loop.call_soon_threadsafe(sealing.set)
            assert released.wait(DEADLINE_S)
        return seal(*arguments)

    monkeypatch.setattr(JobStore, "seal", slow_seal)
    write_running(store, RECORD, tmp_path, factory=f"{__name__}:WithoutSplits")
    dispatcher, _ = dispatcher_of()
    await dispatcher.recover()
    if known:
        await settled(dispatcher)
        slow[0] = True
        dispatcher._jobs[JOB].driver._break(RuntimeError("an internal error"))
    await asyncio.wait_for(sealing.wait(), DEADLINE_S)
    assert [failure.error for failure in dispatcher.exceptions(JOB)] == ["RuntimeError: an internal error"] * known
    await dispatcher.cancel(JOB)
    assert dispatcher.summary(JOB).state == "INITIALIZING"
    assert dispatcher.detail(JOB).timestamps.keys() == {"INITIALIZING"}
    released.set()
    await asyncio.wait_for(dispatcher._jobs[JOB].driver.ended.wait(), DEADLINE_S)
    await settled(dispatcher)
    assert [record.ended for record in read_records(store)[0]] == ["CANCELED"]


async def test_the_end_of_a_job_is_recorded_when_the_ha_store_answers_again(started, store, caplog):
    dispatcher, _ = started
    failures = iter(range(3))

    def fault(operation, key, phase):
        if operation.startswith("put") and key == f"jobs/{JOB}.json" and next(failures, None) is not None:
            raise StorageError("the disk is full")

    store.fault = fault
    await dispatcher.cancel(JOB)
    await dispatcher._jobs[JOB].driver.ended.wait()
    await settled(dispatcher)
    assert [record.ended for record in read_records(store)[0]] == ["CANCELED", ""]
    assert caplog.text.count("is not recorded yet") == 3


async def test_an_internal_error_in_one_job_is_shown_there_and_another_driver_recovers_it(started, caplog):
    dispatcher, _ = started
    broken = dispatcher._jobs[JOB].driver
    broken.master.handle = None
    await dispatcher.cancel(JOB)
    await settled(dispatcher)
    recovered = dispatcher._jobs[JOB].driver
    assert recovered is not broken
    assert recovered.master is not None
    (failure,) = dispatcher.exceptions(JOB)
    assert failure.error == "TypeError: 'NoneType' object is not callable"
    assert "Traceback" in failure.detail
    assert failure.error in caplog.text
    assert [e.text for e in await dispatcher.story(JOB) if e.kind == "failure"] == [failure.error]


async def test_a_job_whose_master_raises_under_each_driver_fails_with_the_traceback(started, monkeypatch):
    dispatcher, _ = started
    handle = JobMaster.handle

    def raising(master, event, now_ms):
        if master.identity.job_id == JOB:
            raise ZeroDivisionError("planted")
        return handle(master, event, now_ms)

    monkeypatch.setattr(JobMaster, "handle", raising)
    await dispatcher.cancel(JOB)
    await dispatcher._jobs[JOB].driver.ended.wait()
    await settled(dispatcher)
    assert dispatcher.summary(JOB).state == "FAILED"
    failures = dispatcher.exceptions(JOB)
    assert {failure.error for failure in failures} == {"ZeroDivisionError: planted"}
    assert "in raising" in failures[0].detail


async def test_the_lease_of_one_job_that_another_cluster_took_ends_no_other_job(started):
    dispatcher, folder = started
    taken = msgspec.json.decode((folder / "lease.json").read_bytes())
    (folder / "lease.json").write_bytes(msgspec.json.encode(taken | {"generation": 9, "holder": ELSEWHERE}))
    dispatcher._jobs[JOB].driver._break(LeadershipLostError("job lease was taken over"))
    await dispatcher._jobs[JOB].driver.ended.wait()
    await settled(dispatcher)
    assert dispatcher.summary(JOB).state == "FAILED"
    assert "is run by process 1 on elsewhere" in dispatcher.exceptions(JOB)[0].error


@pytest.mark.parametrize("left", ["nothing", "the lease"])
async def test_a_job_whose_folder_was_emptied_fails_and_does_not_start_empty(started, left):
    dispatcher, folder = started
    driver = dispatcher._jobs[JOB].driver
    shutil.rmtree(folder / "manifests")
    if left == "nothing":
        (folder / "lease.json").unlink()
    with pytest.raises(SnapshotDamagedError, match=r"was emptied while the job ran: .* is gone .*--fresh"):
        driver._parts.store.read("", list_files=False)
    if left == "nothing":
        with pytest.raises(SnapshotDamagedError, match=r"was emptied while the job ran: lease\.json is gone"):
            driver._parts.store.renew()
        driver._break(RuntimeError("a JobManager was killed"))
        await driver.ended.wait()
        await settled(dispatcher)
        # the new start notices it, or a renewal of the lease on a slow machine
        noticed = r"has neither lease\.json nor a checkpoint of job 'job' \(restore|ran: lease\.json is gone"
        assert re.search(noticed, dispatcher.exceptions(JOB)[0].error)


async def test_a_job_shows_its_last_failure_under_the_next_leader(store, dispatcher_of, tmp_path):
    write_running(store, RECORD, tmp_path, factory=f"{__name__}:WithoutSplits")
    entries = [Entry(3, "failure", "ValueError: no"), Entry(4, "restart", "in 100 ms"), Entry(5, "failure", "the last")]
    write_event_log(store, JOB, 1, entries)
    dispatcher, _ = dispatcher_of()
    await dispatcher.recover()
    await settled(dispatcher)
    assert [(failure.at_ms, failure.error) for failure in dispatcher.exceptions(JOB)] == [
        (5, "the last"), (3, "ValueError: no"),
    ]  # fmt: skip


# --- a file of one job that cannot be decoded -----------------------------------------------------------------------


def damaged(folder, what):
    """Damage a file of the job; return the file and its content."""
    files = {"log": max((folder / "manifests").iterdir()), "lease": folder / "lease.json"}
    file = files.get(what) or folder / "claimed.json"
    if what == "claim":
        file.write_bytes(msgspec.json.encode({"job_folder": "file:///other", "job_id": OTHER.job_id, "sequence": "0"}))
    content = file.read_bytes()
    file.write_bytes(content[:-30] + b"\xff")
    return file, content


async def suspended(dispatcher):
    """Wait until the job of a damaged file is suspended; return its error."""
    while dispatcher.summary(JOB).state != "SUSPENDED":
        assert dispatcher.summary(JOB).state in {"CREATED", "INITIALIZING"}, dispatcher.exceptions(JOB)
        await asyncio.sleep(0)
    return dispatcher.summary(JOB).error


@pytest.mark.parametrize("what", ["log", "lease", "claim"])
async def test_a_job_with_a_damaged_file_is_suspended_until_the_next_leader_finds_it_repaired(
    started, store, dispatcher_of, what, caplog
):
    _, folder = started
    file, content = damaged(folder, what)
    dispatcher, _ = dispatcher_of()
    await dispatcher.recover()
    error = await suspended(dispatcher)
    assert f"{file} is damaged: " in error
    assert "restart the JobManager" in error
    assert f"job job is suspended: {error}" in caplog.text
    assert error in [failure.error for failure in dispatcher.exceptions(JOB)]
    with pytest.raises(UsageError, match=r"job 'job' is suspended \(.* is damaged"):
        await dispatcher.cancel(JOB)
    await settled(dispatcher)
    assert dispatcher.summary("other").state == "RECONCILING"
    assert [record.ended for record in read_records(store)[0]] == ["", ""]
    file.write_bytes(content)
    next_leader, _ = dispatcher_of()
    await next_leader.recover()
    await settled(next_leader)
    assert next_leader.summary(JOB).state == "RECONCILING"
    assert next_leader.summary(JOB).error == ""


@pytest.mark.parametrize("what", ["log", "lease"])
async def test_a_job_whose_file_is_damaged_while_it_runs_is_suspended(started, store, what):
    dispatcher, folder = started
    driver = dispatcher._jobs[JOB].driver
    request = await dispatcher.trigger_checkpoint(JOB)
    file, _ = damaged(folder, what)
    await (driver._read_log(list_files=False) if what == "log" else driver._record_attempt(Attempts(1)))
    assert f"{file} is damaged: " in await suspended(dispatcher)
    assert "Traceback" in dispatcher.exceptions(JOB)[-1].detail
    with pytest.raises(NotFoundError, match="no request"):  # its client repeats it, and learns of the suspension
        dispatcher.operation(request)
    assert "is suspended" in dispatcher.operation(await dispatcher.trigger_checkpoint(JOB)).error
    assert not driver.ended.is_set()
    assert [record.ended for record in read_records(store)[0]] == ["", ""]


async def test_a_job_whose_savepoint_is_damaged_is_suspended(store, dispatcher_of, tmp_path):
    savepoint = tmp_path / "savepoint"
    savepoint.mkdir()
    (savepoint / "manifest.json").write_bytes(b"{")
    record = msgspec.structs.replace(RECORD, options={"from_uri": str(savepoint)})
    write_running(store, record, tmp_path, factory=f"{__name__}:WithoutSplits")
    dispatcher, _ = dispatcher_of()
    await dispatcher.recover()
    assert f"{savepoint}/manifest.json is damaged: " in await suspended(dispatcher)


async def test_a_later_submission_ends_a_suspended_job(started, store, tmp_path, monkeypatch):
    dispatcher, folder = started
    file, _ = damaged(folder, "log")
    dispatcher._jobs[JOB].driver._break(RuntimeError("a failure"))
    await suspended(dispatcher)
    monkeypatch.setattr("penstock.jobmanager.jobs.enumerators.validate", checks_nothing)
    monkeypatch.setattr(dispatcher._parts.taskmanagers.pool, "require", lambda _graph: None)
    graph = make_graph(checkpoint_root=str(tmp_path), factory=f"{__name__}:WithoutSplits")
    graph = encode_graph(msgspec.structs.replace(graph, name="job"))
    with pytest.raises(MetadataDamagedError, match=r"move it away and run the job's file again"):
        await dispatcher.submit(graph)
    assert dispatcher.summary(JOB).state == "SUSPENDED"
    file.rename(tmp_path / "away.json")
    new = await dispatcher.submit(graph, SubmitOptions(fresh=True))
    await settled(dispatcher)
    assert dispatcher.summary("job").job_id == new
    assert dispatcher.summary(new).state == "CREATED"
    assert dispatcher.summary(JOB).state == "FAILED"
    assert dispatcher.summary(JOB).error == f"job {new} of the same name was accepted later"
    assert {r.job_id: r.ended for r in read_records(store)[0]} == {JOB: "FAILED", OTHER.job_id: "", new: ""}


async def checks_nothing(_graph):
    """Stand in for the checks of connectors."""
