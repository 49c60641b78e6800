"""A standby shows a job as SUSPENDED from the end of its leader until it leads itself; a client waits for the job."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from tests.support.leases import PATIENT
from tests.support.waiting import wait_until

import penstock as ps
from penstock.api.environment import use_executor
from penstock.checkpoint.leader_lease import read_lease, released, take_lead, write_lease
from penstock.checkpoint.stores import open_store
from penstock.client.executors import ClusterExecutor, SubmitOptions
from penstock.client.handle import JobHandle
from penstock.client.rest_client import RestClient
from penstock.core.errors import NoJobManagerError
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink
from penstock_lab.servers.process import free_port

pytestmark = [pytest.mark.processes, pytest.mark.slow]

#: A standby looks at the lease several times in its lifetime. That of the lost leader lasts until the test ends it.
LEASE = {"PENSTOCK__JOBMANAGER__LEADER_LEASE_MS": "5000"}
LOST_MS = 600_000
#: A JobManager answers within this time on a busy machine.
PATIENT_S = 120.0


@pytest.fixture
def start(tmp_path):
    """Start a JobManager of the HA root `ha`; return it with its URL."""
    processes = []

    def start_process():
        port, name = free_port(), f"jobmanager-{len(processes)}"
        command = [sys.executable, "-m", "penstock.cli.serve", "jobmanager", "--ha-root", str(tmp_path / "ha")]
        command += ["--rest-port", str(port), "--rpc-port", "0", "--ready-file", str(tmp_path / f"{name}.ready")]
        environment = {**os.environ, **PATIENT, **LEASE, "PENSTOCK_HOME": str(tmp_path / "home")}
        with (tmp_path / f"{name}.log").open("ab") as log:
            processes.append(subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log))
        return processes[-1], f"http://127.0.0.1:{port}"

    yield start_process
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()


def submit(folder, url):
    """Submit a job that waits for slots."""
    env = ps.Environment(1, checkpoint_root=folder / "root", checkpoint_interval="1s")
    env.from_source(DatagenSource(splits=1), uid="orders").sink_to(FileSink(folder / "out"), uid="out")
    with use_executor(ClusterExecutor(url=url, options=SubmitOptions())):
        return env.submit("orders").job_id


def states(client, job_id):
    """Return the states in the list of jobs and in the view of the job; empty without an answer."""
    try:
        return {job["jid"]: job["state"] for job in client.jobs()}[job_id], client.job("orders")["state"]
    except NoJobManagerError:
        return ()


def test_a_job_is_suspended_until_the_next_leader_takes_it(tmp_path, start):
    leader, url = start()
    wait_until((tmp_path / "jobmanager-0.ready").exists, "the leader")
    job_id = submit(tmp_path, url)
    leader.kill()
    leader.wait()
    store = open_store(str(tmp_path / "ha"))
    lease = read_lease(store)
    # its machine is lost with it: a standby sees no end of its process
    elsewhere = msgspec.structs.replace(lease.holder, host="elsewhere", machine="")
    lost = msgspec.structs.replace(lease, holder=elsewhere, jobmanager_id="lost", ttl_ms=LOST_MS)
    held, _ = take_lead(store, lost, lease.generation)

    _, url = start()
    client = RestClient(url, timeout_seconds=PATIENT_S)
    suspended = ("SUSPENDED", "SUSPENDED")
    wait_until(lambda: states(client, job_id) == suspended, lambda: f"SUSPENDED, not {states(client, job_id)}")
    with pytest.raises(NoJobManagerError):
        client.cancel(job_id)
    with pytest.raises(NoJobManagerError):
        client._get(f"/v1/jobs/{job_id}/status")
    with ThreadPoolExecutor(1) as waiting:
        end = waiting.submit(JobHandle(client, job_id, "orders").wait, timeout_ms=1000 * PATIENT_S)
        write_lease(store, released(held))
        led = lambda: set(states(client, job_id)) & {"CREATED", "RECONCILING"}
        wait_until(led, lambda: f"the standby to lead; the job is {states(client, job_id)}")
        client.cancel(job_id)
        assert end.result() == "CANCELED"
