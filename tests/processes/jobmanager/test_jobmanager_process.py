"""The whole JobManager on one event loop, with a real stream to a TaskManager whose workers are imitations."""

from __future__ import annotations

import asyncio
import threading

import msgspec
import pytest
from tests.support.waiting import until

from penstock.checkpoint.ha_records import read_records
from penstock.checkpoint.job_lease import this_process
from penstock.checkpoint.leader_lease import LeaderLease, read_lease, released, take_lead, write_lease
from penstock.checkpoint.stores import open_store
from penstock.config.settings import ClusterSettings, RestartStrategy
from penstock.core.errors import (
    JobIdentityError,
    LeadershipLostError,
    NotFoundError,
    PenstockError,
    StorageError,
    UsageError,
)
from penstock.graph.job_graph import encode_graph
from penstock.jobmanager import dispatcher as dispatcher_module
from penstock.jobmanager.config import JobManagerConfig, JobManagerLimits
from penstock.jobmanager.jobs import enumerators
from penstock.jobmanager.jobs.job_store import JobStore
from penstock.jobmanager.jobs.recorded_jobs import SubmitOptions
from penstock.jobmanager.main import JobManager
from penstock.rpc import messages as msg
from penstock.rpc.stream import ReconnectPolicy, TaskManagerLink

#: No test waits for a time-out; a busy machine may stop this process for seconds.
SETTINGS = ClusterSettings(
    rest_port=0, rpc_port=0, heartbeat_interval_ms=50, heartbeat_timeout_ms=60_000, slot_request_timeout_ms=60_000
)


class Splits:
    """A source whose splits are known."""

    def create_enumerator(self, spec, *, first_run):
        return self

    def discover(self, known):
        from penstock.connector.source import SourceSplit

        return tuple(SourceSplit(id=f"t-{i}") for i in range(2) if f"t-{i}" not in known)

    def validate(self, *_):
        pass

    def close(self):
        pass


@pytest.fixture(autouse=True)
def _connectors(monkeypatch):
    monkeypatch.setattr(enumerators, "load_connector", lambda _path: Splits())


class FakeTaskManager:
    """Slots whose workers answer like those of the job master's tests."""

    def __init__(self, address: str, worker_type, world_type) -> None:
        self.world = world_type()
        self.worker_type = worker_type
        self.workers: dict[str, object] = {}
        self.entries: dict[str, msg.SlotStatus] = {}
        self.link = TaskManagerLink(
            address,
            lambda: msg.RegisterTaskManager(
                taskmanager_id="tm", host="here", pid=7, slots=4, offered=tuple(self.entries.values())
            ),
            self.handle,
            policy=ReconnectPolicy(first_delay_ms=10, max_delay_ms=20),
        )
        self.task = asyncio.create_task(self.link.run())

    def handle(self, command) -> None:
        match command:
            case msg.Registered():
                for worker_id in set(self.entries) - set(command.keep_workers):
                    del self.workers[worker_id], self.entries[worker_id]
                self.link.send(msg.Heartbeat(taskmanager_id="tm", sequence=1))
            case msg.StartWorker():
                self.workers[command.worker_id] = self.worker_type(self.world, command.worker_id)
                self.entries[command.worker_id] = msg.SlotStatus(
                    worker_id=command.worker_id, job_id=command.job_id, slot=command.slot
                )
                self.report(command.worker_id, msg.WorkerReady(worker_id=command.worker_id, endpoint="unix:x", pid=42))
            case msg.StopWorker():
                self.workers.pop(command.worker_id, None)
                self.entries.pop(command.worker_id, None)
                self.link.send(msg.WorkerExited(taskmanager_id="tm", worker_id=command.worker_id, returncode=-9))
            case msg.ToWorker():
                for worker_id in command.worker_ids:
                    self.to_worker(worker_id, msg.decode_worker_command(command.command))
            case msg.FetchLog():
                self.link.send(msg.LogText(request_id=command.request_id, text=f"log of {command.worker_id}"))

    def to_worker(self, worker_id, command) -> None:
        worker = self.workers.get(worker_id)
        if worker is None:
            return
        for answer in worker.answer(command):
            self.report(worker_id, answer)
        if not isinstance(command, msg.TriggerCheckpoint):
            return
        checkpoint = command.run_id, command.checkpoint_id
        if checkpoint not in self.world.seen:
            self.world.seen.add(checkpoint)
            for other_id, other in self.workers.items():
                for ack in other.acks(command):
                    self.report(other_id, ack)

    def report(self, worker_id, report) -> None:
        self.link.send(msg.FromWorker(taskmanager_id="tm", worker_id=worker_id, report=msg.encode(report)))

    def kill(self, worker_id) -> None:
        del self.workers[worker_id], self.entries[worker_id]
        self.link.send(msg.WorkerExited(taskmanager_id="tm", worker_id=worker_id, returncode=-9, log_tail="last words"))

    async def close(self) -> None:
        self.link.close()
        await asyncio.wait_for(asyncio.gather(self.task, return_exceptions=True), 60)


class _World:
    def __init__(self) -> None:
        self.deaf, self.seen = set(), set()
        self.assigned, self.permits, self.resolved, self.savepoints, self.owed = [], [], [], [], []
        self.splits, self.output, self.counts, self.copy_error = {}, {}, {}, ""


@pytest.fixture
async def cluster_of(tmp_path, fake_worker_type):
    """Return a maker of (JobManager, TaskManager) over one HA root; a new one leads at once."""
    started, store = [], open_store(str(tmp_path / "ha"))

    async def make(*, taskmanager=True, **limits):
        config = JobManagerConfig(ha_uri=str(tmp_path / "ha"), settings=SETTINGS)
        manager = JobManager(config, limits=JobManagerLimits(**limits))
        started.append(manager)
        start = asyncio.create_task(manager.start())
        while manager.generation == 0 and not start.done():
            # more than once: a leader that still runs may renew its lease after this
            if (lease := read_lease(store)) is not None and not lease.released:
                write_lease(store, released(lease))
            await asyncio.sleep(0.02)
        await start
        machine = FakeTaskManager(manager.rpc_address, fake_worker_type, _World) if taskmanager else None
        if machine is not None:
            started.append(machine)
        return manager, machine

    yield make
    for part in reversed(started):
        await part.close()


@pytest.fixture
def encoded(graph_of, tmp_path):
    def make(**settings):
        return encode_graph(
            graph_of(checkpoint_root=str(tmp_path / "root"), **({"checkpoint_interval_ms": 20} | settings))
        )

    return make


async def running(manager, job_id, checkpoints=2):
    await until(
        lambda: (
            manager.dispatcher.summary(job_id).state == "RUNNING"
            and manager.dispatcher.summary(job_id).checkpoints_completed >= checkpoints
        ),
        lambda: f"{checkpoints} checkpoints: {manager.dispatcher.detail(job_id).summary}",
    )


async def test_a_job_runs_survives_a_worker_and_stops_with_a_savepoint(cluster_of, encoded):
    manager, machine = await cluster_of()
    dispatcher = manager.dispatcher
    job_id = await dispatcher.submit(encoded(), SubmitOptions(token="t"))
    assert await dispatcher.submit(encoded(), SubmitOptions(token="t")) == job_id
    assert (dispatcher.submitted("t"), dispatcher.submitted("u"), dispatcher.submitted("")) == (job_id, "", "")
    await running(manager, job_id)
    with pytest.raises(JobIdentityError, match="is already running"):
        await dispatcher.submit(encoded())
    worker_id = next(iter(machine.workers))
    assert await dispatcher.log_tail("tm", worker_id) == f"log of {worker_id}"
    machine.kill(worker_id)
    await until(lambda: dispatcher.summary(job_id).restarts == 1, "a restart")
    await running(manager, job_id, checkpoints=4)
    assert dispatcher.exceptions(job_id)[0].detail == "last words"
    assert machine.world.resolved
    detail = dispatcher.detail("job")
    assert [v.state for v in detail.vertices] == ["RUNNING", "RUNNING"]
    assert [s.taskmanager_id for v in detail.vertices for s in v.subtasks] == ["tm"] * 4
    assert [await dispatcher.savepoint(job_id, token="ab" * 16) for _ in range(2)] == ["ab" * 16] * 2
    assert (await dispatcher.wait_operation("ab" * 16, 10_000)).uri == machine.world.savepoints[-1]
    assert len(machine.world.savepoints) == 1
    status = await dispatcher.wait_operation(await dispatcher.stop(job_id), 10_000)
    assert status.status == "COMPLETED", status
    assert status.uri == machine.world.savepoints[-1]
    assert (await dispatcher.wait(job_id, 10_000)).state == "FINISHED"
    view = dispatcher.checkpoints(job_id)
    assert view.latest_completed.kind == "stop"
    assert view.latest_completed.acknowledged == 4
    assert dispatcher.cluster().free_slots == 4
    with pytest.raises(UsageError, match="FINISHED"):
        await dispatcher.cancel(job_id)


async def test_a_checkpoint_is_unaligned_on_request_where_the_job_allows_it(cluster_of, encoded):
    manager, _ = await cluster_of()
    dispatcher, hour = manager.dispatcher, 3_600_000
    settings = {"unaligned_checkpoints": True, "aligned_checkpoint_timeout_ms": hour, "checkpoint_interval_ms": hour}
    job_id = await dispatcher.submit(encoded(**settings))
    await running(manager, job_id, checkpoints=0)
    for unaligned in (None, True, False):
        request_id = await dispatcher.trigger_checkpoint(job_id, unaligned=unaligned)
        status = await dispatcher.wait_operation(request_id, 10_000)
        assert status.status == "COMPLETED", status


async def test_a_job_whose_checkpoints_are_aligned_takes_no_other_one(cluster_of, encoded):
    manager, _ = await cluster_of()
    dispatcher = manager.dispatcher
    job_id = await dispatcher.submit(encoded())
    await running(manager, job_id)
    with pytest.raises(UsageError, match=r"are aligned \(start it with unaligned_checkpoints=True\)"):
        await dispatcher.trigger_checkpoint(job_id, unaligned=True)


async def test_a_new_leader_recovers_the_job_and_the_old_one_steps_down(cluster_of, encoded):
    old, _ = await cluster_of()
    job_id = await old.dispatcher.submit(encoded())
    await running(old, job_id)
    new, machine = await cluster_of()
    await running(new, job_id)
    assert new.generation == old.generation + 1
    assert new.dispatcher.checkpoints(job_id).restored == 1
    assert machine.world.resolved[0].permit.checkpoint_id >= 2
    with pytest.raises(LeadershipLostError):
        await asyncio.wait_for(old.wait(), 60)


async def test_a_leader_recovers_a_job_that_an_earlier_version_recorded(cluster_of, encoded, tmp_path):
    old, _ = await cluster_of()
    job_id = await old.dispatcher.submit(encoded())
    await running(old, job_id)
    await old.close()
    (file,) = (tmp_path / "ha" / "jobs").iterdir()
    record = msgspec.json.decode(file.read_bytes())
    record["options"]["allow_non_restored_state"] = False
    file.write_bytes(msgspec.json.encode(record))
    new, _ = await cluster_of()
    await running(new, job_id)


async def test_a_job_that_was_taken_starts_although_the_store_failed_at_first(cluster_of, encoded, monkeypatch):
    manager, _ = await cluster_of(recover_retry_ms=60)
    failures = [StorageError("the store is away")]
    seal = JobStore.seal

    def fail_once(self, *arguments):
        if failures:
            raise failures.pop()
        return seal(self, *arguments)

    monkeypatch.setattr(JobStore, "seal", fail_once)
    job_id = await manager.dispatcher.submit(encoded())
    await running(manager, job_id)


async def test_a_job_with_a_damaged_record_is_suspended_and_the_others_run(cluster_of, encoded, tmp_path):
    old, _ = await cluster_of()
    job_id = await old.dispatcher.submit(encoded())
    await running(old, job_id)
    store = open_store(str(tmp_path / "ha"))
    store.put(f"jobs/{'0' * 32}.json", store.read(f"jobs/{job_id}.json")[:-30])
    new, _ = await cluster_of()
    await running(new, job_id)
    suspended = new.dispatcher.summary("0" * 32)
    assert (suspended.state, suspended.terminal) == ("SUSPENDED", False)
    assert "is damaged" in suspended.error
    for view in all_views(new.dispatcher, "0" * 32):
        assert view is not None
    with pytest.raises(UsageError, match=r"is suspended .*jobs/0+\.json is damaged"):
        await new.dispatcher.cancel("0" * 32)


async def test_a_submission_that_failed_after_its_record_was_written_does_not_fight_with_the_next(
    cluster_of, encoded, monkeypatch
):
    """Both are recorded as not ended; one identity runs one job, the one whose submission was answered."""
    old, _ = await cluster_of()
    write = dispatcher_module.write_record

    def unanswered(*arguments):
        write(*arguments)
        monkeypatch.setattr(dispatcher_module, "write_record", write)
        raise StorageError("no answer")

    monkeypatch.setattr(dispatcher_module, "write_record", unanswered)
    with pytest.raises(StorageError):
        await old.dispatcher.submit(encoded())
    job_id = await old.dispatcher.submit(encoded())
    await running(old, job_id)
    await old.close()
    new, _ = await cluster_of()
    await running(new, job_id)
    assert {job.job_id: job.state for job in new.dispatcher.jobs()}.pop(job_id) == "RUNNING"
    (other,) = [job for job in new.dispatcher.jobs() if job.job_id != job_id]
    assert other.state == "FAILED"
    await new.close()
    newest, _ = await cluster_of()
    await running(newest, job_id)
    assert newest.dispatcher.summary(other.job_id).state == "FAILED"


async def test_a_superseded_leader_does_not_take_a_job_back(cluster_of, encoded, monkeypatch, tmp_path):
    manager, _ = await cluster_of(taskmanager=False, recover_retry_ms=60)
    acquired = []
    acquire = JobStore.acquire

    def refuse(self, *arguments):
        store = open_store(str(tmp_path / "ha"))
        newer = LeaderLease(generation=0, jobmanager_id="newer", holder=this_process("newer"), released=True)
        take_lead(store, newer, read_lease(store).generation)
        raise LeadershipLostError("a newer leader has taken the job over")

    monkeypatch.setattr(JobStore, "acquire", lambda self, *a, **k: acquired.append(1) or acquire(self, *a, **k))
    monkeypatch.setattr(JobStore, "seal", refuse)
    with pytest.raises(LeadershipLostError):
        await manager.dispatcher.submit(encoded())
    with pytest.raises(LeadershipLostError):
        await asyncio.wait_for(manager.wait(), 60)
    successor, _ = await cluster_of(taskmanager=False, recover_retry_ms=60)
    with pytest.raises(LeadershipLostError):
        await asyncio.wait_for(successor.wait(), 60)
    assert len(acquired) == 2  # once each: neither tried again


async def test_a_leader_that_was_succeeded_during_a_submission_refuses_the_job(
    cluster_of, encoded, monkeypatch, tmp_path
):
    """Its successor has listed the jobs already: nobody would run it, and the next leader would start it later."""
    manager, _ = await cluster_of(taskmanager=False)
    store, write = open_store(str(tmp_path / "ha")), dispatcher_module.write_record

    def late(where, record):
        if not record.ended:
            newer = LeaderLease(generation=0, jobmanager_id="newer", holder=this_process("newer"), released=True)
            take_lead(store, newer, read_lease(store).generation)
        write(where, record)

    monkeypatch.setattr(dispatcher_module, "write_record", late)
    with pytest.raises(LeadershipLostError):
        await manager.dispatcher.submit(encoded())
    ((record,), ()) = read_records(store)
    assert record.ended == "FAILED"
    assert not manager.dispatcher.jobs()


async def test_a_standby_whose_control_port_is_taken_ends_at_once(cluster_of, tmp_path):
    leader, _ = await cluster_of(taskmanager=False)
    port = int(leader.rpc_address.rpartition(":")[2])
    settings = msgspec.structs.replace(SETTINGS, rpc_port=port)
    standby = JobManager(JobManagerConfig(ha_uri=str(tmp_path / "ha"), settings=settings))
    with pytest.raises(PenstockError, match=rf"cannot listen on \S+:{port}: Address already in use"):
        await standby.start()
    await standby.close()


async def test_a_standby_probes_the_leader(cluster_of, tmp_path):
    leader, _ = await cluster_of(taskmanager=False)
    standby = JobManager(JobManagerConfig(ha_uri=str(tmp_path / "ha"), settings=SETTINGS))
    waiting = asyncio.create_task(standby.start())
    asked, answer = [], leader.leadership.answer
    await until(lambda: leader._server._probes._streams, "a stream of probes")
    leader._server._probes._answer = lambda: asked.append(1) or answer()
    await until(lambda: len(asked) > 2, "probes")
    assert answer().generation == leader.generation
    assert answer().renewals >= 1
    standby.shutdown()
    assert not await waiting
    await standby.close()
    await until(lambda: not leader._server._probes._streams, "the end of the stream")


def all_views(dispatcher, job):
    """All that is shown of a job."""
    ask = (dispatcher.summary, dispatcher.detail, dispatcher.checkpoints, dispatcher.exceptions)
    return tuple(question(job) for question in (*ask, dispatcher.last_workers, dispatcher.metrics))


async def test_jobs_that_ended_are_shown_in_full_by_the_next_leader(cluster_of, encoded):
    old, machine = await cluster_of()
    cancelled = await old.dispatcher.submit(encoded())
    await running(old, cancelled)
    await old.dispatcher.cancel(cancelled)
    assert (await old.dispatcher.wait(cancelled, 10_000)).state == "CANCELED"
    failed = await old.dispatcher.submit(encoded(restart=RestartStrategy(kind="none")))
    await running(old, failed)
    killed = max(machine.workers)
    machine.kill(killed)
    assert (await old.dispatcher.wait(failed, 10_000)).state == "FAILED"
    before = [all_views(old.dispatcher, job) for job in (cancelled, failed)]
    await machine.close()
    await old.close()
    new, _ = await cluster_of()
    await until(lambda: [all_views(new.dispatcher, job) for job in (cancelled, failed)] == before, "the archives")
    (summary, _, checkpoints, (failure,), (last,), _) = before[1]
    assert summary.state == "FAILED"
    assert checkpoints.completed == len([c for c in checkpoints.history if c.status == "COMPLETED"]) >= 2
    assert failure.detail == "last words"
    assert (last.worker_id, last.taskmanager_id, failure.taskmanager_id) == (killed, "tm", "tm")
    await until(new.dispatcher.taskmanagers, "a TaskManager")
    assert await new.dispatcher.worker_log(killed) == f"log of {killed}"
    assert len(new.dispatcher.last_workers(cancelled)) == 2


async def test_only_the_jobs_that_ended_last_are_shown_in_full(cluster_of, encoded, tmp_path):
    manager, _ = await cluster_of(retained_ended_jobs=1)
    jobs = []
    for _ in range(2):
        jobs.append(await manager.dispatcher.submit(encoded()))
        await running(manager, jobs[-1])
        await manager.dispatcher.cancel(jobs[-1])
        await manager.dispatcher.wait(jobs[-1], 10_000)
    archives = tmp_path / "ha" / "archives"
    await until(lambda: [path.stem for path in archives.glob("*.json")] == jobs[1:], "one archive")
    first, second = (manager.dispatcher.checkpoints(job).history for job in jobs)
    assert (first, len(second) >= 2) == ((), True)
    assert manager.dispatcher.summary(jobs[0]).state == "CANCELED"


async def test_a_job_waits_for_slots(cluster_of, encoded):
    manager, _ = await cluster_of(taskmanager=False)
    job_id = await manager.dispatcher.submit(encoded())
    assert manager.dispatcher.summary(job_id).state == "CREATED"
    with pytest.raises(NotFoundError):
        manager.dispatcher.summary("nope")


async def test_a_graph_that_is_none_is_refused(cluster_of):
    manager, _ = await cluster_of(taskmanager=False)
    with pytest.raises(UsageError, match="cannot be read"):
        await manager.dispatcher.submit(b"{}")


async def test_a_cut_whose_savepoint_cannot_be_written_is_refused_and_the_job_goes_on(cluster_of, encoded, tmp_path):
    manager, machine = await cluster_of()
    dispatcher = manager.dispatcher
    job_id = await dispatcher.submit(encoded())
    await running(manager, job_id)
    file = tmp_path / "file"
    file.touch()
    for target in (str(file), str(file / "below"), "ftp://somewhere"):
        for ask in (dispatcher.stop, dispatcher.savepoint):
            with pytest.raises(UsageError, match=r"is not writable.*the request was refused") as caught:
                await ask(job_id, uri=target)
            assert target in caught.value.message
    done = dispatcher.checkpoints(job_id).completed
    await until(lambda: dispatcher.checkpoints(job_id).completed > done, "another checkpoint")
    assert dispatcher.summary(job_id).restarts == 0
    assert machine.world.savepoints == []
    target = tmp_path / "saved"
    status = await dispatcher.wait_operation(await dispatcher.stop(job_id, uri=str(target)), 10_000)
    assert (status.status, status.uri) == ("COMPLETED", machine.world.savepoints[-1])
    assert list(target.iterdir()) == [], "what was tried is gone"


async def test_names_of_state_to_leave_behind_are_refused_without_a_savepoint(cluster_of, encoded):
    manager, _ = await cluster_of(taskmanager=False)
    with pytest.raises(UsageError, match="needs a savepoint to start from") as caught:
        await manager.dispatcher.submit(encoded(), SubmitOptions(allow_non_restored_state=("people/seen",)))
    assert "--from" in caught.value.hint
    assert manager.dispatcher.jobs() == ()


async def test_another_cluster_is_refused_and_told_who_holds_the_job(cluster_of, encoded, tmp_path):
    manager, _ = await cluster_of()
    job_id = await manager.dispatcher.submit(encoded())
    await running(manager, job_id)
    other = JobManager(JobManagerConfig(ha_uri=str(tmp_path / "other"), settings=SETTINGS))
    await other.start()
    try:
        with pytest.raises(JobIdentityError, match=job_id):
            await other.dispatcher.submit(encoded())
        assert other.dispatcher.jobs() == ()
    finally:
        await other.close()


async def test_a_jobmanager_that_cannot_look_after_its_cluster_ends(cluster_of, monkeypatch):
    manager, _ = await cluster_of(taskmanager=False)
    monkeypatch.setattr(manager.dispatcher.autoscaler, "sample", lambda now_ms: now_ms / 0)
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(manager.wait(), 60)
    await manager.close()


async def test_a_start_whose_store_does_not_answer_says_so(capsys):
    store, go = open_store("memory://silent"), threading.Event()
    store.fault = lambda *_: go.wait(60)
    manager = JobManager(JobManagerConfig(ha_uri=store.uri, settings=SETTINGS), limits=JobManagerLimits(quiet_ms=1))
    starting, said = asyncio.create_task(manager.start()), []

    def reported():
        said.append(capsys.readouterr().err)
        return "".join(said)

    try:
        await until(reported, "a line about the store")
        assert "waiting for an answer of memory://silent; check that the server runs" in reported()
    finally:
        go.set()
    assert await starting
    await manager.close()
