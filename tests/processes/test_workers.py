"""Workers as real processes: forks, leases, logs, memory, requirements."""

import contextlib
import os
import signal
import sys
from pathlib import Path

import pytest

from penstock.checkpoint.local_copies import ENDED
from penstock.config.config_file import TaskManagerSettings
from penstock.rpc.messages import (
    FetchLog,
    ForgetJob,
    Heartbeat,
    LogText,
    StopWorker,
    WorkerExited,
    WorkerStartFailed,
    WorkerStopped,
)
from penstock.taskmanager.memory_division import divided
from penstock.taskmanager.template import SAFE_THREADS

pytestmark = pytest.mark.processes


def exists(pid):
    return Path(f"/proc/{pid}").exists()


def thread_names(pid):
    tasks = [task for task in Path(f"/proc/{pid}/task").iterdir() if int(task.name) != pid]
    return [(task / "comm").read_text(encoding="utf-8").strip() for task in tasks]


def command_of(pid):
    return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode()


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])


async def test_a_forked_worker_runs_arrow_polars_and_kafka_calls(stage):
    stage.start("w")
    await stage.jobmanager.ready("w")
    stage.probe("w", "calls")
    assert "arrow=4999950000 polars=4999950000 groups=7" in await stage.jobmanager.probed("w")


async def test_a_template_holds_only_threads_that_survive_a_fork(stage):
    (pid,) = stage.supervisor.template_pids
    assert set(thread_names(pid)) <= SAFE_THREADS


async def test_a_worker_has_the_short_switch_interval_and_no_inherited_sockets(stage):
    for number in range(2):
        stage.start(f"w{number}", slot=number)
        await stage.jobmanager.ready(f"w{number}")
    stage.probe("w1", "look")
    # its control socket, and the network's listener and wake-up pair
    assert "switch=0.0005 sockets=4" in await stage.jobmanager.probed("w1")


async def test_a_worker_gives_way_to_its_supervisor(stage):
    stage.start("w")
    ready = await stage.jobmanager.ready("w")
    own = os.getpriority(os.PRIO_PROCESS, os.getpid())
    assert os.getpriority(os.PRIO_PROCESS, ready.pid) == min(19, own + 5)


async def test_ps_shows_the_job_and_the_worker(stage):
    stage.start("w-1", job_name="order-totals")
    ready = await stage.jobmanager.ready("w-1")
    assert command_of(ready.pid) == "penstock worker order-totals w-1"


async def test_an_exit_is_reported_at_once_with_the_last_lines_of_the_log(stage):
    stage.start("w")
    await stage.jobmanager.ready("w")
    stage.probe("w", "die")
    exited = await stage.jobmanager.exited("w")
    assert (exited.returncode, exited.crashed_at) == (7, "worker_probe.py:62 in die")
    last = "last words\nFatal Python error: os._exit(7) ended the worker\n"
    assert exited.log_tail.startswith(last)
    stage.supervisor.handle(FetchLog(request_id="r", worker_id="w"))
    text = await stage.jobmanager.until(lambda report: report if isinstance(report, LogText) else None)
    assert text.text == exited.log_tail
    stage.start("w2")
    await stage.jobmanager.ready("w2")


async def test_a_slot_is_free_again_only_when_its_worker_is_gone(stage):
    stage.start("w1")
    ready = await stage.jobmanager.ready("w1")
    stage.start("w2")
    failed = await stage.jobmanager.until(lambda r: r if isinstance(r, WorkerStartFailed) else None)
    assert "held by worker w1" in failed.error
    assert failed.slot_refused
    stage.supervisor.handle(StopWorker(worker_id="w1"))
    assert (await stage.jobmanager.exited("w1")).returncode == -signal.SIGKILL
    assert not exists(ready.pid)
    stage.start("w3")
    await stage.jobmanager.ready("w3")


@pytest.mark.skipif(sys.platform != "linux", reason="the template alone sees the exit of a worker on Linux only")
async def test_a_slot_is_allocated_active_and_releasing_and_only_a_live_worker_is_offered_to_a_new_leader(stage):
    async def reported(*states):
        seen = max((r.sequence for r in stage.jobmanager.reports if isinstance(r, Heartbeat)), default=0)
        newer = lambda r: isinstance(r, Heartbeat) and r.sequence > seen and r
        heartbeat = await stage.jobmanager.until(newer)
        assert [(held.slot, held.worker_id, held.state) for held in heartbeat.slot_report] == list(states)

    offered = lambda: [(held.worker_id, held.state) for held in stage.supervisor.registration().offered]
    stage.start("w1")
    assert [holder.state for holder in stage.supervisor._slots.held] == ["ALLOCATED"]
    await stage.jobmanager.ready("w1")
    await reported((0, "w1", "ACTIVE"))
    with exit_unseen(stage):
        stage.supervisor.handle(StopWorker(worker_id="w1"))
        await reported((0, "w1", "RELEASING"))
        assert offered() == []
    await stage.jobmanager.exited("w1")
    assert stage.supervisor._slots.free_slots == tuple(range(stage.supervisor._slots.count))


@pytest.mark.skipif(sys.platform != "linux", reason="the template alone sees the exit of a worker on Linux only")
async def test_a_slot_whose_killed_worker_does_not_end_is_refused_in_time(stage_with):
    stage = stage_with(released_within_ms=100)
    await stage.open()
    try:
        stage.start("w1")
        await stage.jobmanager.ready("w1")
        with exit_unseen(stage):
            stage.supervisor.handle(StopWorker(worker_id="w1"))
            stage.start("w2")
            failed = await stage.jobmanager.until(lambda r: r if isinstance(r, WorkerStartFailed) else None)
            told = (failed.worker_id, failed.error, failed.slot_refused)
            assert told == ("w2", "slot 0 is still held by worker w1, which was killed", True)
        await stage.jobmanager.exited("w1")
        stage.start("w3")
        await stage.jobmanager.ready("w3")
    finally:
        await stage.close()


async def test_a_worker_starts_beside_the_one_that_it_replaces_if_there_is_memory(stage_with):
    stage = stage_with(memory=divided(TaskManagerSettings(), 2, 2 << 30, "--memory"))
    await stage.open()
    try:
        for name, slot, beside in [("w1", 0, False), ("w2", 0, True), ("w3", 1, False)]:
            stage.start(name, slot=slot, beside=beside, managed_memory_bytes=400 << 20)
            await stage.jobmanager.ready(name)
        stage.start("w4", slot=1, beside=True, managed_memory_bytes=400 << 20)
        failed = await stage.jobmanager.until(lambda r: r if isinstance(r, WorkerStartFailed) else None)
        assert failed.error.startswith("UsageError: one more worker needs 528 MB of memory, but ")
        stage.supervisor.handle(StopWorker(worker_id="w1"))
        await stage.jobmanager.exited("w1")
        assert [(held.slot, held.worker_id) for held in stage.supervisor._slots.held] == [(0, "w2"), (1, "w3")]
    finally:
        await stage.close()


@contextlib.contextmanager
def exit_unseen(stage):
    """Stop the template, which alone sees the exit of a worker."""
    (template,) = stage.supervisor.template_pids
    os.kill(template, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(template, signal.SIGCONT)


def stopped(worker_id):
    return lambda report: isinstance(report, WorkerStopped) and report.worker_id == worker_id


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not show the flags of threads")
async def test_a_killed_worker_has_stopped_before_its_exit_and_its_copies_are_complete(stage, tmp_path):
    stage.start("w1")
    await stage.jobmanager.ready("w1")
    (own,) = (tmp_path / "copies").iterdir()
    (own / "job" / "w1").mkdir(parents=True)
    (own / "job" / "w1" / "1.pack").write_bytes(b"x")
    with exit_unseen(stage):
        stage.supervisor.handle(StopWorker(worker_id="w1"))
        stage.supervisor.handle(StopWorker(worker_id="w1"))
        await stage.jobmanager.until(stopped("w1"))
        assert [path.parent for path in own.rglob("*.pack")] == [own / "job" / ENDED / "w1"]
        assert not any(isinstance(report, WorkerExited) for report in stage.jobmanager.reports)
        assert stage.supervisor._slots.of_worker("w1") is not None
    await stage.jobmanager.exited("w1")
    assert [path.parent for path in own.rglob("*.pack")] == [own / "job" / ENDED / "w1"]
    assert len([report for report in stage.jobmanager.reports if stopped("w1")(report)]) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not show the flags of threads")
@pytest.mark.parametrize("beside", [False, True])
async def test_a_slot_is_granted_again_when_its_stopped_worker_has_exited(stage, beside):
    """Another job may have got it, or a further rescale of the same."""
    stage.start("w1")
    await stage.jobmanager.ready("w1")
    if beside:
        stage.start("w2", beside=True)
        await stage.jobmanager.ready("w2")
    with exit_unseen(stage):
        stage.supervisor.handle(StopWorker(worker_id="w1"))
        await stage.jobmanager.until(stopped("w1"))
        stage.start("w3", beside=beside)
        assert stage.supervisor._slots.of_worker("w3") is None
    await stage.jobmanager.ready("w3")
    assert not any(isinstance(report, WorkerStartFailed) for report in stage.jobmanager.reports)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not show the flags of threads")
async def test_the_memory_of_a_stopped_worker_counts_until_its_exit(stage_with):
    stage = stage_with(memory=divided(TaskManagerSettings(), 2, 4 << 30, "--memory"))
    await stage.open()
    try:
        for name, slot in [("w1", 0), ("w2", 1)]:
            stage.start(name, slot=slot, managed_memory_bytes=400 << 20)
            await stage.jobmanager.ready(name)
        with exit_unseen(stage):
            stage.supervisor.handle(StopWorker(worker_id="w1"))
            await stage.jobmanager.until(stopped("w1"))
            stage.supervisor._workers["w1"].held_bytes = 3 << 30
            stage.start("w3", slot=1, beside=True, managed_memory_bytes=400 << 20)
            await stage.jobmanager.until(lambda r: isinstance(r, WorkerStartFailed) and r.worker_id == "w3")
        await stage.jobmanager.exited("w1")
        stage.start("w4", slot=1, beside=True, managed_memory_bytes=400 << 20)
        await stage.jobmanager.ready("w4")
    finally:
        await stage.close()


async def test_copies_of_checkpoint_files_stay_for_the_next_worker_until_the_end_of_the_job(stage, tmp_path):
    stage.start("w1")
    await stage.jobmanager.ready("w1")
    (own,) = (tmp_path / "copies").iterdir()
    (own / "job" / "w1").mkdir(parents=True)
    (own / "job" / "w1" / "1.pack").write_bytes(b"x")
    stage.supervisor.handle(StopWorker(worker_id="w1"))
    await stage.jobmanager.exited("w1")
    assert [path.name for path in own.rglob("*.pack")] == ["1.pack"]
    stage.supervisor.handle(ForgetJob(job_id="job"))
    assert [path.name for path in own.iterdir()] == ["lock"]


async def test_a_jobmanager_that_takes_over_gets_the_slots_of_the_workers_it_has_killed(stage):
    """It asks at once for what it has just freed, and may think better of it."""
    stage.start("w1")
    await stage.jobmanager.ready("w1")
    stage.register()
    stage.start("w2")
    stage.supervisor.handle(StopWorker(worker_id="w2"))
    stage.start("w3")
    await stage.jobmanager.ready("w3")
    refused = [report for report in stage.jobmanager.reports if isinstance(report, WorkerStartFailed)]
    assert [(report.worker_id, report.error) for report in refused] == [
        ("w2", "it was stopped before its slot was free")
    ]


async def test_a_worker_of_which_the_coordinator_hears_nothing_dies_by_its_lease(stage, gone):
    stage.register(stage.SHORT_LEASE_MS)
    stage.start("w")
    ready = await stage.jobmanager.ready("w")
    await stage.jobmanager.lease_over()
    assert exists(ready.pid), "the lease is renewed while heartbeats are acknowledged"
    stage.jobmanager.acknowledge = False
    exited = await stage.jobmanager.exited("w")
    assert exited.returncode == -signal.SIGALRM


async def test_a_worker_that_was_stopped_dies_when_it_is_resumed(stage, gone):
    stage.register(stage.SHORT_LEASE_MS)
    stage.start("w")
    ready = await stage.jobmanager.ready("w")
    os.kill(ready.pid, signal.SIGSTOP)
    stage.jobmanager.acknowledge = False
    await stage.jobmanager.lease_over()
    assert exists(ready.pid)
    stage.jobmanager.acknowledge = True
    os.kill(ready.pid, signal.SIGCONT)
    exited = await stage.jobmanager.exited("w")
    assert exited.returncode == -signal.SIGALRM


async def test_a_worker_that_holds_the_gil_dies_by_its_lease_although_heartbeats_go_on(stage):
    stage.register(stage.SHORT_LEASE_MS)
    stage.start("w")
    await stage.jobmanager.ready("w")
    stage.probe("w", "hold_gil")
    exited = await stage.jobmanager.exited("w")
    assert exited.returncode == -signal.SIGALRM


async def test_workers_die_with_their_template_and_a_new_template_takes_over(stage):
    stage.start("w1")
    await stage.jobmanager.ready("w1")
    (template,) = stage.supervisor.template_pids
    os.kill(template, signal.SIGKILL)
    assert (await stage.jobmanager.exited("w1")).returncode == -signal.SIGKILL
    stage.start("w2")
    await stage.jobmanager.ready("w2")
    assert stage.supervisor.template_pids != (template,)


async def test_a_worker_beyond_its_memory_limit_is_killed_with_the_reason(stage_with):
    stage = stage_with(memory=divided(TaskManagerSettings(worker_memory_bytes=400 << 20), 4, 8 << 30, "--memory"))
    await stage.open()
    try:
        stage.start("w")
        await stage.jobmanager.ready("w")
        await stage.jobmanager.until(lambda r: isinstance(r, Heartbeat) and r.worker_memory.get("w"))
        stage.probe("w", "eat")
        exited = await stage.jobmanager.exited("w")
        assert "its limit is 400 MB" in exited.reason
    finally:
        await stage.close()


async def test_network_memory_is_lent_to_workers_returned_and_never_more_than_there_is(stage_with):
    """A slot is guaranteed 64 MB and 256 MB are shared; each worker needs 400 MB beyond 64."""
    settings = TaskManagerSettings(network_memory_fraction=0.0, network_memory_min_bytes=512 << 20)
    stage = stage_with(memory=divided(settings, 4, 8 << 30, "--memory"))
    await stage.open()
    lent = lambda wanted: stage.jobmanager.until(
        lambda r: isinstance(r, Heartbeat) and r.sequence > heard and r.network_lent_bytes == wanted << 20
    )
    heard = 0
    try:
        for number, worker_id in enumerate(("w1", "w2")):
            stage.start(worker_id, slot=number)
            await stage.jobmanager.ready(worker_id)
            stage.open_channels(worker_id, 228)
            await lent(256)
        loans = stage.supervisor._network._loans
        await stage.jobmanager.until(lambda _: [loan.held_bytes >> 20 for loan in loans.values()] == [128, 128])
        heard = max(report.sequence for report in stage.jobmanager.reports if isinstance(report, Heartbeat))
        for worker_id in ("w1", "w2"):
            stage.supervisor.handle(StopWorker(worker_id=worker_id))
            await stage.jobmanager.exited(worker_id)
        await lent(0)
    finally:
        await stage.close()


async def test_a_worker_whose_job_wants_more_memory_than_a_slot_has_is_not_started(stage_with):
    stage = stage_with(memory=divided(TaskManagerSettings(), 4, 1 << 30, "--memory"))
    await stage.open()
    try:
        stage.start("w", managed_memory_bytes=512 << 20)
        refused = await stage.jobmanager.until(lambda r: r if isinstance(r, WorkerStartFailed) else None)
        assert refused.error.startswith("UsageError: the job wants 512 MB of managed memory per slot, but a slot has ")
    finally:
        await stage.close()


async def test_modules_that_start_threads_are_not_forked_but_spawned(stage):
    stage.start("w", preload=("starts_thread",))
    ready = await stage.jobmanager.ready("w")
    assert parent_of(ready.pid) == os.getpid()
    stage.probe("w", "look")
    assert "switch=0.0005" in await stage.jobmanager.probed("w")
    stage.supervisor.handle(StopWorker(worker_id="w"))
    assert (await stage.jobmanager.exited("w")).returncode == -signal.SIGKILL


async def test_preloaded_modules_come_with_a_template_forked_for_the_job(stage):
    stage.start("w", preload=("worker_probe",))
    await stage.jobmanager.ready("w")
    assert len(stage.supervisor.template_pids) == 2
    stage.probe("w", "look")
    assert "switch=" in await stage.jobmanager.probed("w")


async def test_a_module_that_cannot_be_imported_fails_where_it_is_needed(stage):
    stage.start("w", preload=("no_such_module",))
    await stage.jobmanager.ready("w")


async def test_requirements_are_installed_once_and_only_that_jobs_workers_see_them(stage, tmp_path, monkeypatch):
    installs = []

    def install(requirements, root, installer=None):
        folder = root / "fake"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "probe_library.py").write_text("NAME = 'from requirements'\n")
        installs.append(requirements)
        return folder

    monkeypatch.setattr("penstock.taskmanager.environments.install_requirements", install)
    stage.start("with", requirements=("probe-library",))
    stage.start("without", slot=1)
    await stage.jobmanager.ready("with")
    await stage.jobmanager.ready("without")
    stage.probe("with", "library")
    stage.probe("without", "library")
    assert "library=from requirements" in await stage.jobmanager.probed("with")
    assert "No module named" in await stage.jobmanager.probed("without")
    assert installs == [("probe-library",)]


async def test_requirements_that_cannot_be_installed_are_one_line_and_the_slot_is_free(stage, monkeypatch):
    from penstock.taskmanager.environments import RequirementsError

    def install(requirements, root, installer=None):
        raise RequirementsError("the job's requirements could not be installed: no such package")

    monkeypatch.setattr("penstock.taskmanager.environments.install_requirements", install)
    stage.start("w", requirements=("nonsense",))
    failed = await stage.jobmanager.until(lambda r: r if isinstance(r, WorkerStartFailed) else None)
    assert failed.error.startswith("RequirementsError: ")
    assert "no such package" in failed.error
    stage.start("w2")
    await stage.jobmanager.ready("w2")


async def test_closing_leaves_nothing_behind(stage_with, tmp_path, gone):
    stage = stage_with()
    await stage.open()
    stage.start("w")
    ready = await stage.jobmanager.ready("w")
    pids = [ready.pid, *stage.supervisor.template_pids]
    folder = Path(ready.endpoint.removeprefix("unix:")).parent
    await stage.close()
    gone(pids)
    assert not folder.exists()
