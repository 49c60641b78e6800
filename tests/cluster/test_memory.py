"""Memory of a TaskManager by slot: a job that wants or uses more fails, and the error names the setting to raise.

The TaskManager is in a control group of its size, as in a container: the kernel would kill what exceeds it.
"""

import pytest
from tests.support.control_group import memory_group
from tests.support.waiting import wait_until

from penstock.api.job_file import planned
from penstock.client.executors import ClusterExecutor
from penstock.client.handle import TERMINAL
from penstock.client.local_cluster import LocalCluster, LocalClusterConfig
from penstock.core.errors import UsageError

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

SLOTS, TOTAL_MB = 4, 1280
#: A slot has (1280 - 128) / 4 = 288 MB, of which 128 MB are managed.
ENVIRONMENT = {"PENSTOCK__TASKMANAGER__MEMORY": f"{TOTAL_MB}MB", "PENSTOCK__TASKMANAGER__MANAGED_MEMORY": "512MB"}
PROFILES = {
    "cpu_cores=100_000": "wants 100000 CPU cores per slot, but a slot has ",
    "task_memory_bytes=1 << 30": "wants 1024 MB of task memory per slot, but a slot has 128 MB ",
    "managed_memory_bytes=1 << 28": "wants 256 MB of managed memory per slot, but a slot has 128 MB ",
}
JOB = """
import time

import penstock as ps
from penstock_connectors.files import FileSink, FileSource


class Row(ps.Schema):
    n: int


def held(row: Row) -> Row:
    kept = []
    while True:  # until the TaskManager ends it: 1 GB a second
        kept.append(b"x" * (4 << 20))
        time.sleep(0.004)


env = ps.Environment(parallelism=4, checkpoint_root="checkpoints", restart="none"{more})
env.from_source(FileSource("rows/*.jsonl", Row), uid="rows").map(held).uid("held").sink_to(FileSink("out"), uid="out")
env.execute("held")
"""


@pytest.fixture
def group():
    """A control group with the memory of the TaskManager; None: this process may not create one."""
    with memory_group(TOTAL_MB << 20) as found:
        yield found


@pytest.fixture
def cluster(tmp_path, group):
    """A TaskManager in the group."""
    config = LocalClusterConfig(
        taskmanagers=1, slots_per_taskmanager=SLOTS, directory=tmp_path / "cluster", environment=ENVIRONMENT,
        restart_dead=False,
    )  # fmt: skip
    with LocalCluster(config) as running:
        if group is not None:
            running.taskmanagers[0].kill()
            with group.joined():
                running.taskmanagers[0].start()
            with running.client() as rest:
                there = lambda: [manager["freeSlots"] for manager in rest.taskmanagers()] == [SLOTS]
                wait_until(lambda: running.taskmanagers[0].is_ready and there(), "the TaskManager")
        yield running


def test_four_slots_under_a_job_that_wants_and_one_that_uses_more_than_they_have(cluster, group, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows").mkdir()
    for number in range(SLOTS):
        (tmp_path / "rows" / f"{number}.jsonl").write_text('{"n": 1}\n')

    def submitted(more):
        (tmp_path / "job.py").write_text(JOB.format(more=more))
        return ClusterExecutor(url=cluster.rest_url).submit(planned(tmp_path / "job.py", {}, ""))

    wanted = (
        r"wants 256 MB of managed memory per slot, but a slot has 128 MB \(lower the job's managed_memory, or raise"
    )
    with pytest.raises(UsageError, match=wanted):
        submitted(', managed_memory="256MB"')
    for field, wanted in PROFILES.items():
        with pytest.raises(UsageError, match=wanted):
            submitted(f", slot_resources=[ps.ResourceProfile({field})]")
    with cluster.client() as rest:
        (manager,) = rest.taskmanagers()
        assert (manager["freeSlots"], manager["freeResource"]["managedMemory"]) == (SLOTS, 512)
        job_id = submitted(", slot_resources=[ps.ResourceProfile(cpu_cores=1e-3, managed_memory_bytes=1 << 27)]").job_id
        state = lambda: rest.summary(job_id)["state"]
        wait_until(lambda: state() in TERMINAL, lambda: f"the end of the job, which is {state()}")
        error = rest.exceptions(job_id)["root-exception"]
    assert cluster.taskmanagers[0].alive
    assert "MB of memory, its limit is 288 MB, and was killed" in error
    assert "start the TaskManager with more --memory, fewer slots or --worker-memory" in error
    if group is None:
        pytest.skip("whether the kernel kills needs a memory control group, which this process may not create")
    assert group.kills() == 0
