"""What a task of Airflow adds to the request it makes: `python -m tests.bench.airflow_overhead`.

A real Airflow (as `infra/airflow.py` starts it), a cluster, and small jobs of generated orders. Each thing is done by
REST, with the client, until it is complete; then by a DAG of one task, from the request for a run to its success. The
task waits deferred in the triggerer, or, in a second column, in its worker.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.airflow.driver import Airflow
from tests.airflow.job_file import write_job
from tests.support.waiting import wait_until

from penstock.api.job_file import planned
from penstock.client.handle import JobHandle
from penstock.client.local_cluster import LocalCluster, LocalClusterConfig
from penstock.graph.job_graph import encode_graph
from penstock_lab.servers.process import free_port

DAGS = """
from airflow.sdk import DAG

from penstock_airflow.operators.job import CancelJobOperator, RescaleJobOperator, StopJobOperator
from penstock_airflow.operators.savepoint import TriggerSavepointOperator
from penstock_airflow.operators.submit import SubmitJobOperator
from penstock_airflow.operators.upgrade import UpgradeJobOperator

job, path = "{{ params.job }}", "{{ params.job_file }}"
for wait in ("deferred", "worker"):
    same = {"task_id": "task", "deferrable": wait == "deferred", "poll_seconds": 0.2}
    makers = {
        "submit": lambda: SubmitJobOperator(job_file=path, **same),
        "savepoint": lambda: TriggerSavepointOperator(job=job, **same),
        "rescale": lambda: RescaleJobOperator(job=job, parallelism="{{ params.parallelism }}", **same),
        "upgrade": lambda: UpgradeJobOperator(job=job, job_file=path, options={"checkpoints": 1}, **same),
        "stop": lambda: StopJobOperator(job=job, **same),
        "cancel": lambda: CancelJobOperator(job=job, **same),
    }
    for name, make in makers.items():
        with DAG(f"{name}_{wait}", schedule=None, params={"job": "", "job_file": "", "parallelism": 1}) as dag:
            make()
        globals()[f"{name}_{wait}"] = dag
"""
WAITS = ("deferred", "worker")
LIMIT_S = 120


class Bench:
    """Jobs of names of their own, and the time each thing takes."""

    def __init__(self, cluster, airflow, folder):
        self.cluster, self.airflow, self.folder = cluster, airflow, folder
        self.rest = cluster.client()
        self.seen = {}

    def job(self, number):
        """The file of a job, and that of its next version."""
        name = f"bench-{number}"
        path = write_job(self.folder, name, interval="500ms")
        new = self.folder / f"{name}-new.py"
        new.write_text(path.read_text().replace(".sink_to(", ".filter(lambda row: True)\n       .sink_to("))
        return name, path, new

    def timed(self, what, way, act):
        began = time.monotonic()
        act()
        self.seen.setdefault(what, {}).setdefault(way, []).append(time.monotonic() - began)

    def by_rest(self, number):
        name, path, new = self.job(number)
        job_ids = []

        def submit():
            job_ids.append(self.rest.submit(encode_graph(planned(path, {}, name))))
            done = lambda: self.rest.summary(job_ids[-1])["checkpoints-completed"]
            wait_until(done, "a checkpoint", seconds=LIMIT_S, step=0.05)

        def cancel():
            self.rest.cancel(job_ids[-1])
            self.rest.job_after(job_ids[-1], 30_000)

        self.timed("submit", "rest", submit)
        handle = JobHandle(self.rest, job_ids[-1], name)
        self.timed("savepoint", "rest", handle.savepoint)
        self.timed("rescale", "rest", lambda: handle.rescale(2))
        self.timed("upgrade", "rest", lambda: handle.upgrade(planned(new, {}, name), checkpoints=1))
        self.timed("stop", "rest", handle.stop)
        submit()
        self.timed("cancel", "rest", cancel)

    def by_airflow(self, number, way):
        name, path, new = self.job(number)

        def run(what, **conf):
            def act():
                dag = f"{what}_{way}"
                self.airflow.wait_run(dag, self.airflow.trigger(dag, job=name, **conf))

            self.timed(what, way, act)

        run("submit", job_file=str(path))
        run("savepoint")
        run("rescale", parallelism=2)
        run("upgrade", job_file=str(new))
        run("stop")
        again = [sys.executable, "-m", "penstock.cli.main", "run", str(new), "--cluster", self.cluster.rest_url]
        subprocess.run([*again, "--detached"], check=True, capture_output=True)
        wait_until(lambda: self.rest.job(name)["state"] == "RUNNING", "a running job", seconds=LIMIT_S, step=0.1)
        run("cancel")

    def table(self):
        """Medians in seconds, a row for each operator."""
        median = lambda what, way: statistics.median(self.seen[what][way])
        lines = ["| operator | REST | task, deferred | task, in a worker |", "|---|---|---|---|"]
        for what in self.seen:
            rest = median(what, "rest")
            more = [f"{median(what, way):.1f} s (+{median(what, way) - rest:.1f})" for way in WAITS]
            lines.append(f"| {what} | {rest:.2f} s | {' | '.join(more)} |")
        return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3, help="of each operator and way")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "dags").mkdir()
        (folder / "dags" / "operators.py").write_text(DAGS)
        config = LocalClusterConfig(taskmanagers=1, slots_per_taskmanager=3, directory=folder / "cluster")
        environment = {"AIRFLOW__CORE__DAGS_FOLDER": str(folder / "dags")}
        with (
            LocalCluster(config) as cluster,
            Airflow(folder / "home", free_port(), cluster.rest_url, environment) as airflow,
        ):
            airflow.wait_dags([f"submit_{way}" for way in WAITS])
            bench = Bench(cluster, airflow, folder)
            for number in range(options.runs):
                bench.by_rest(f"{number}-rest")
                for way in WAITS:
                    bench.by_airflow(f"{number}-{way}", way)
            print(bench.table())
            seen = {
                what: {way: [round(s, 2) for s in found] for way, found in ways.items()}
                for what, ways in bench.seen.items()
            }
            print(json.dumps({"seconds": seen, "load": round(os.getloadavg()[0], 1)}))


if __name__ == "__main__":
    main()
