"""Files of two jobs are damaged and one JobMaster raises: nine other jobs go on, also under a restarted JobManager."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from tests.support.jobs import end_jobs
from tests.support.leases import PATIENT
from tests.support.waiting import wait_until

import penstock as ps
from penstock.api.environment import use_executor
from penstock.client.executors import ClusterExecutor, SubmitOptions
from penstock.client.rest_client import RestClient
from penstock.core.errors import UsageError
from penstock_connectors.datagen import ORDER_SCHEMA, DatagenSource, OrderPattern, orders
from penstock_connectors.files import FileSink

pytestmark = [pytest.mark.processes, pytest.mark.slow]

OTHERS = 9
#: A JobManager answers within this time on a busy machine.
PATIENT_S = 120.0
SERVE = ("-m", "penstock.cli.serve")
RAISING = (str(Path(__file__).with_name("raising_jobmanager.py")),)


@pytest.fixture
def start(tmp_path):
    """Start processes that share the HA root `ha`; they end with the test."""
    processes = []

    def start_process(role, *program, **options):
        name = f"{role}-{len(processes)}"
        ready = tmp_path / f"{name}.ready"
        options |= {"ha_root": tmp_path / "ha", "ready_file": ready}
        pairs = [part for key, value in options.items() for part in (f"--{key.replace('_', '-')}", str(value))]
        environment = {**os.environ, **PATIENT, "PENSTOCK_HOME": str(tmp_path / "home")}
        with (tmp_path / f"{name}.log").open("ab") as log:
            command = [sys.executable, *program, role, *pairs]
            processes.append(subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log))
        wait_until(ready.exists, lambda: f"{name} is ready; its log: {(tmp_path / log.name).read_text()}")
        return processes[-1], ready.read_text()

    yield start_process
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait()


class Jobs:
    """The jobs of one cluster, by name; each writes its orders to a folder of its name."""

    def __init__(self, folder, url):
        self.folder, self.ids = folder, {}
        self.connect(url)

    def connect(self, url):
        self.rest = RestClient(url, timeout_seconds=PATIENT_S)

    def submit(self, name):
        env = ps.Environment(1, checkpoint_root=self.folder / "root", checkpoint_interval="300ms")
        rows = env.from_source(DatagenSource(splits=1, rows_per_second=200), uid="orders")
        rows.sink_to(FileSink(self.folder / name), uid="out")
        with use_executor(ClusterExecutor(url=self.rest.url, options=SubmitOptions())):
            self.ids[name] = env.submit(name).job_id

    def state(self, name):
        return self.rest.job(self.ids[name])["state"]

    def workers(self, names):
        return {name: [worker["pid"] for worker in self.rest.workers(self.ids[name])] for name in names}

    def files(self, name):
        return len(list((self.folder / name).glob("*.parquet")))

    def write_on(self, names):
        """Wait until each has published two more epochs: the first may have been complete before."""
        before = {name: self.files(name) for name in names}
        late = lambda: [name for name in names if self.files(name) < before[name] + 2]
        wait_until(lambda: not late(), lambda: f"output of {late()}; states {[self.state(name) for name in late()]}")

    def exact(self, name):
        """Return whether the output has the first orders, each once."""
        found = ds.dataset(sorted((self.folder / name).glob("*.parquet"))).to_table(columns=ORDER_SCHEMA.names)
        wanted = orders(OrderPattern(splits=1), 0, 0, found.num_rows)
        return found.sort_by("ts").combine_chunks().to_batches()[0].to_pylist() == wanted.to_pylist()


def test_nine_jobs_go_on_beside_a_raising_master_and_damaged_files(tmp_path, start):
    others = [f"other-{number}" for number in range(OTHERS)]
    jobmanager, ready = start("jobmanager", *RAISING, rest_port=0, rpc_port=0)
    start("taskmanager", *SERVE, slots=OTHERS + 3, id="tm", work_dir=tmp_path / "tm", memory="8g")
    jobs = Jobs(tmp_path, json.loads(ready)["rest"])
    for name in ("raises", "damaged", "unreadable", *others):
        jobs.submit(name)
    jobs.write_on(jobs.ids)
    workers = jobs.workers(jobs.ids)

    jobs.rest.savepoint(jobs.ids["raises"])
    wait_until(lambda: jobs.rest.exceptions(jobs.ids["raises"])["exceptionHistory"]["entries"], "the failure")
    (failure,) = jobs.rest.exceptions(jobs.ids["raises"])["exceptionHistory"]["entries"]
    assert "ZeroDivisionError: planted" in failure["stacktrace"]
    assert "Traceback" in failure["stacktrace"]
    record = tmp_path / "ha" / "jobs" / f"{jobs.ids['damaged']}.json"
    record.write_bytes(record.read_bytes()[:-30])
    jobs.write_on(jobs.ids)
    assert jobs.workers(others) == {name: workers[name] for name in others}, "another job has restarted"
    assert jobs.workers(["raises"])["raises"] != workers["raises"], "the job whose master raised has not restarted"

    jobmanager.kill()
    jobmanager.wait()
    entry = max((tmp_path / "root" / "unreadable" / "manifests").glob("*.json"))
    content = entry.read_bytes()
    entry.write_bytes(content[:-30])
    jobmanager, ready = start("jobmanager", *SERVE, rest_port=0, rpc_port=0)
    jobs.connect(json.loads(ready)["rest"])
    jobs.write_on(["raises", *others])
    assert jobs.workers(others) == {name: workers[name] for name in others}, "another job has restarted"
    assert {jobs.state(name) for name in ("raises", *others)} == {"RUNNING"}
    assert jobs.state("damaged") == "SUSPENDED"
    with pytest.raises(UsageError, match=rf"is suspended .*{record.name} is damaged"):
        jobs.rest.cancel(jobs.ids["damaged"])
    wait_until(lambda: jobs.state("unreadable") == "SUSPENDED", "the job of a damaged log entry is suspended")
    with pytest.raises(UsageError, match=rf"is suspended .*{entry.name} is damaged"):
        jobs.rest.cancel(jobs.ids["unreadable"])
    left = [Path(f"/proc/{pid}") for pid in workers["unreadable"]]
    wait_until(lambda: not any(process.exists() for process in left), "the workers of the suspended job have ended")

    entry.write_bytes(content)
    jobmanager.kill()
    jobmanager.wait()
    _, ready = start("jobmanager", *SERVE, rest_port=0, rpc_port=0)
    jobs.connect(json.loads(ready)["rest"])
    jobs.write_on(["unreadable", "raises", *others])
    assert jobs.workers(others) == {name: workers[name] for name in others}, "another job has restarted"
    jobs.rest.savepoint(jobs.ids["raises"])
    end_jobs(jobs.rest, besides=[jobs.ids["damaged"]])
    assert {name for name in jobs.ids if not jobs.exact(name)} == set()
