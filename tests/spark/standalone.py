"""A Spark standalone cluster on loopback: a Master and Workers as processes of their own, which start executors."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request

import pyspark
from tests.cluster import proc_tree
from tests.spark.executors import executors, is_taskmanager
from tests.support.waiting import wait_until

from penstock.client.processes import free_port
from penstock.core.rand import SystemRand

HOST = "127.0.0.1"
#: Below the ephemeral ports, beside those of the test servers.
PORTS = range(20_000, 30_000)
HOME = next(iter(pyspark.__path__))


class Standalone:
    """`workers` Workers with `cores` cores each; a context manager that leaves no process."""

    def __init__(self, folder, *, workers, cores, memory="4g"):
        self.folder, self.workers = folder, []
        self._wanted = workers
        self._arguments = ("--cores", str(cores), "--memory", memory)
        self._port, self._web_port = (free_port(HOST, PORTS, SystemRand()) for _ in range(2))
        self._master = None

    @property
    def url(self):
        return f"spark://{HOST}:{self._port}"

    def __enter__(self):
        master = ("--host", HOST, "--port", str(self._port), "--webui-port", str(self._web_port))
        self._master = self._start("master", "master.Master", *master)
        try:
            wait_until(self.state, "Spark's master", seconds=120, step=0.2)
            for number in range(self._wanted):
                self.add_worker(number)
            wait_until(lambda: len(self.alive_workers()) == self._wanted, "Spark's workers", seconds=120, step=0.2)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        mine = [process for process in (self._master, *self.workers) if process is not None]
        below = [pid for process in mine for pid in proc_tree.descendants(process.pid)]
        proc_tree.signal_all([*(process.pid for process in mine), *below], signal.SIGKILL)
        for process in mine:
            process.wait()

    def add_worker(self, number):
        own = ("--host", HOST, "--webui-port", "0", "--work-dir", str(self.folder / f"work-{number}"))
        self.workers.append(self._start(f"worker-{number}", "worker.Worker", *own, *self._arguments, self.url))

    def state(self):
        """Return the master's document of workers and applications; empty while it does not answer."""
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{HOST}:{self._web_port}/json/") as answer:
            return json.load(answer)
        return {}

    def alive_workers(self):
        return [worker for worker in self.state().get("workers", ()) if worker["state"] == "ALIVE"]

    def executors(self):
        """Pids of all executors' JVMs, by number of the worker."""
        return {number: executors(worker.pid) for number, worker in enumerate(self.workers)}

    def used(self):
        """Pids of the executors that run a TaskManager, by number of the worker."""
        return {
            number: [pid for pid in pids if any(map(is_taskmanager, proc_tree.descendants(pid)))]
            for number, pids in self.executors().items()
        }

    def decommission(self, number):
        """Decommission as `decommission-worker.sh` does: the Worker tells the master and its executors."""
        os.kill(self.workers[number].pid, signal.SIGPWR)

    def _start(self, name, program, *arguments):
        environment = {
            **os.environ,
            "SPARK_HOME": HOME,
            "SPARK_LOCAL_IP": HOST,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-Dspark.decommission.enabled=true",
            "PYSPARK_PYTHON": sys.executable,
        }
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [f"{HOME}/bin/spark-class", f"org.apache.spark.deploy.{program}", *arguments],
                env=environment, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
