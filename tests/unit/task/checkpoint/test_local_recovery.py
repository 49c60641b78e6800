"""A restart on the same TaskManager reads its state from local copies alone; on another one, from the store."""

import functools
from datetime import UTC, datetime

import pyarrow as pa
import pytest

import penstock as ps
from penstock.checkpoint.memory_store import MemoryStore
from penstock.client import in_process
from penstock.client.in_process import JOB_ID
from penstock.core.clock import ManualClock
from penstock.state.memory.limits import PRODUCTION
from penstock.taskmanager.copy_folders import CopyFolders
from penstock.testing import JobHarness
from penstock_connectors.datagen import DatagenSource

USERS = 4_000
START = datetime(2026, 1, 1, tzinfo=UTC)
#: No segment is in a manifest, and most are read in pieces.
LIMITS = PRODUCTION.changed(inline_state_bytes=1, whole_file_bytes=1_000)


class Hosts:
    """TaskManagers, on one of which each attempt of a job runs."""

    def __init__(self, folder):
        self.folder, self.workers, self.all = folder, 0, []
        self.move()

    def move(self):
        """The next attempt is on another host."""
        self.copies = CopyFolders(self.folder / f"host-{len(self.all)}", ManualClock())
        self.all.append(self.copies)

    def environment(self, made, **given):
        if self.workers:
            self.copies.worker_ended(JOB_ID, f"w{self.workers}", 0)
        self.workers += 1
        own = {"worker_id": f"w{self.workers}", "copies_dir": self.copies.folder_of(JOB_ID), "limits": LIMITS}
        return made(**{**given, **own})

    def files(self):
        return sorted(self.copies.folder_of(JOB_ID).rglob("*.pack"))


@pytest.fixture
def hosts(tmp_path, monkeypatch):
    made = Hosts(tmp_path)
    environment = functools.partial(made.environment, in_process.TaskEnvironment)
    monkeypatch.setattr(in_process, "TaskEnvironment", environment)
    yield made
    for copies in made.all:
        copies.close()


@pytest.fixture
def job_with(hosts):
    """A job with a state of each user."""
    opened = []

    def make(backend="hashmap", **settings):
        env = ps.Environment(state_backend=backend, **settings)
        totals = env.from_source(DatagenSource(), uid="orders").key_by("user_id").aggregate(total=ps.sum("amount"))
        opened.append(JobHarness(totals.uid("totals")))
        return opened[-1]

    yield make
    for job in opened:
        job.close()


def push(job, amount):
    users = pa.array(range(USERS), pa.int64())
    times = pa.array([START] * USERS, pa.timestamp("us", tz="UTC"))
    job.push("orders", pa.table({"user_id": users, "amount": pa.array([amount] * USERS, pa.int64()), "ts": times}))


def totals(job):
    """The total of each user after one more order of 1."""
    job.take()
    push(job, 1)
    return {row["total"] for row in job.take()}


def reads_of_a_restart(job, restart=JobHarness.crash):
    """Lose the worker, use all its state; return the objects that were read from the store."""
    store, read = MemoryStore.named(job._job._root.removeprefix("memory://")), []

    def note(operation, key, phase):
        if (operation, phase) == ("read", "after"):
            read.append(key.partition("/")[2])

    store.fault = note
    restart(job)
    found = totals(job)
    store.fault = lambda *_: None
    return read, found


def read_bytes(job):
    """Bytes of state that were read from copies and from the store."""
    found = [subtask.metrics.read() for subtask in job._job.subtasks]
    names = ("numStateBytesReadLocal", "numStateBytesReadRemote")
    return tuple(int(sum(values.get(name, 0) for values in found)) for name in names)


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb", "remote"])
def test_a_restart_on_the_same_taskmanager_reads_nothing_from_the_store(job_with, backend):
    job = job_with(backend)
    for _ in range(3):
        push(job, 10)
        job.checkpoint()
    assert reads_of_a_restart(job) == ([], {31})
    local, remote = read_bytes(job)
    assert (local > 10_000, remote) == (True, 0)
    # and once more, from what the second worker took over and wrote
    job.checkpoint()
    assert reads_of_a_restart(job) == ([], {32})


def test_a_rescale_reads_nothing_from_the_store_either(job_with):
    job = job_with()
    push(job, 10)
    job.checkpoint()
    # its checkpoint has no changes, which would be read back when they are written
    assert reads_of_a_restart(job, lambda job: job.rescale(3)) == ([], {11})
    assert len(job._job.subtasks) > 3


def test_a_disk_that_takes_no_copies_fails_nothing(job_with, hosts):
    job = job_with()
    hosts.copies.folder_of(JOB_ID).write_text("a file where the folder would be")
    push(job, 10)
    job.checkpoint()
    read, found = reads_of_a_restart(job)
    assert (bool(read), found) == (True, {11})
    job.checkpoint()


def test_a_restart_on_another_taskmanager_reads_everything_from_the_store(job_with, hosts):
    job = job_with()
    push(job, 10)
    job.checkpoint()
    hosts.move()
    read, found = reads_of_a_restart(job)
    assert (bool(read), found) == (True, {11})
    local, remote = read_bytes(job)
    assert (local, remote > 10_000) == (0, True)


def overwritten(path):
    path.write_bytes(bytes(path.stat().st_size))


def flipped(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0x10
    path.write_bytes(data)


def shortened(path):
    path.write_bytes(path.read_bytes()[:-7])


@pytest.mark.parametrize("damage", [overwritten, flipped, shortened])
@pytest.mark.parametrize("backend", ["hashmap", "remote"])
def test_damaged_copies_are_read_from_the_store(job_with, hosts, damage, backend):
    job = job_with(backend)
    push(job, 10)
    job.checkpoint()
    damaged = hosts.files()
    for path in damaged:
        damage(path)
    read, found = reads_of_a_restart(job)
    assert (bool(damaged and read), found) == (True, {11})


def test_a_copy_of_an_older_checkpoint_under_the_same_name_is_not_used(job_with, hosts):
    job = job_with()
    push(job, 10)
    job.checkpoint()
    (first,) = hosts.files()
    older = first.read_bytes()
    push(job, 10)
    job.checkpoint()
    for path in hosts.files():
        if path != first:
            path.write_bytes(older)
    read, found = reads_of_a_restart(job)
    assert (bool(read), found) == (True, {21})


def test_a_job_may_keep_no_copies(job_with, hosts):
    job = job_with(local_recovery_bytes=0)
    push(job, 10)
    job.checkpoint()
    assert hosts.files() == []
    read, found = reads_of_a_restart(job)
    assert (bool(read), found) == (True, {11})


def test_copies_do_not_grow_with_the_checkpoints(job_with, hosts):
    job = job_with()
    push(job, 10)
    job.checkpoint()
    held = []
    for _ in range(40):
        push(job, 1)
        job.checkpoint()
        held.append(len(hosts.files()))
    assert max(held) < 20, held
