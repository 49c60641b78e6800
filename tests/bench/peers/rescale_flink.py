"""How long output stands still when Flink rescales a job: `python -m tests.bench.peers.rescale_flink`.

The job, the measure and the fields are those of `tests.bench.rewrite_downtime --only rescale-and-back`. Flink runs as a
standalone application cluster with the adaptive scheduler: a JobManager and a TaskManager with four slots, on loopback.
The job makes --keys keys at full speed, then reads 5,000 rows a second. The state's size is that of its checkpoint.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from tests.bench.rewrite_downtime import AFTER_S, LIMIT_S, Published, longest, told
from tests.flink_tools import installation
from tests.support.waiting import wait_until

from penstock_lab.servers.process import LOOPBACK, Command, LocalProcess, free_port
from penstock_lab.servers.provision import java_program

JOB = Path(__file__).parent / "java" / "peers" / "RescaleJob.java"
ROWS_PER_SECOND, SLOTS = 5_000, 4
START_MS, STOP_MS = 120_000.0, 20_000.0
MASTER = "org.apache.flink.container.entrypoint.StandaloneApplicationClusterEntryPoint"
WORKER = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
OPENED = ("--add-opens=java.base/java.util=ALL-UNNAMED", "--add-opens=java.base/java.lang=ALL-UNNAMED")
#: A rescale begins with the next checkpoint, which the scheduler waits for so that few rows are read again.
SETTINGS = {
    "jobmanager.scheduler": "adaptive",
    "jobmanager.adaptive-scheduler.submission.resource-stabilization-timeout": "0 s",
    "jobmanager.adaptive-scheduler.executing.resource-stabilization-timeout": "0 s",
    "jobmanager.adaptive-scheduler.executing.cooldown-after-rescaling": "0 s",
    "parallelism.default": 2,
    "pipeline.object-reuse": True,
    "restart-strategy.type": "none",
    "execution.checkpointing.mode": "EXACTLY_ONCE",
    "execution.checkpointing.incremental": True,
    "execution.checkpointing.storage": "filesystem",
    "execution.checkpointing.local-backup.enabled": True,
    "execution.state-recovery.from-local": True,
    "taskmanager.numberOfTaskSlots": SLOTS,
    "taskmanager.cpu.cores": 2.0,
    "taskmanager.memory.framework.heap.size": "128m",
    "taskmanager.memory.framework.off-heap.size": "128m",
    "taskmanager.memory.task.off-heap.size": "0m",
    "taskmanager.memory.network.min": "128m",
    "taskmanager.memory.network.max": "128m",
    "taskmanager.memory.jvm-metaspace.size": "256m",
    "taskmanager.memory.jvm-overhead.min": "256m",
    "taskmanager.memory.jvm-overhead.max": "256m",
    "web.refresh-interval": 100,
    "web.checkpoints.history": 1000,
}
#: Fast restores take whole files; the compaction drops other subtasks' keys, so that the next restore can do so.
FAST_RESTORES = (
    "use-bloom-filter",
    "use-ingest-db-restore-mode",
    "rescaling.use-delete-files-in-range",
    "incremental-restore-async-compact-after-rescale",  # ForSt ignores it
)
LOG = """rootLogger.level=WARN
rootLogger.appenderRef.c.ref=C
appender.c.name=C
appender.c.type=CONSOLE
appender.c.layout.type=PatternLayout
appender.c.layout.pattern=%d{HH:mm:ss,SSS} %-5p %c{1} %m%n
"""


class Cluster:
    """A JobManager with the job, and a TaskManager; files below `top`."""

    def __init__(self, top, options):
        self.top, self.options = Path(top), options
        self.address = f"{LOOPBACK}:{free_port()}"
        for name in ("classes", "conf", "tmp"):
            (self.top / name).mkdir()
        jars = f"{installation.home()}/pyflink/lib/*"
        compiler = Path(java_program()).with_name("javac")
        subprocess.run([compiler, "-nowarn", "-cp", jars, "-d", self.top / "classes", JOB], check=True, timeout=120)
        self._classes = f"{self.top}/classes:{jars}"
        self._configure()
        job = ("--job-classname", "peers.RescaleJob", self.top, options.keys, ROWS_PER_SECOND, options.sums)
        self._master = self._process("jobmanager", ("-Xmx1g",), MASTER, job)
        memory = (f"-Xmx{options.heap + 128}m", "-XX:MaxDirectMemorySize=512m")
        self._worker = self._process("taskmanager", memory, WORKER)

    def _configure(self):
        host, port = self.address.split(":")
        own = {
            "rest.address": host, "rest.bind-address": host, "rest.port": port,
            "jobmanager.rpc.address": host, "jobmanager.bind-host": host, "jobmanager.rpc.port": free_port(),
            "taskmanager.host": host, "taskmanager.bind-host": host,
            "taskmanager.memory.task.heap.size": f"{self.options.heap}m",
            "taskmanager.memory.managed.size": self.options.managed,
            "io.tmp.dirs": str(self.top / "tmp"), "process.working-dir": str(self.top / "work"),
            "execution.checkpointing.dir": f"file://{self.top}/checkpoints",
            "execution.checkpointing.interval": self.options.interval,
            "state.backend.type": self.options.backend,
        }  # fmt: skip
        own.update((f"state.backend.{self.options.backend}.{name}", True) for name in FAST_RESTORES)
        lines = [f"{name}: {json.dumps(value)}\n" for name, value in {**SETTINGS, **own}.items()]
        (self.top / "conf" / "config.yaml").write_text("".join(lines))
        (self.top / "conf" / "log4j2.properties").write_text(LOG)

    def _process(self, name, flags, entry, words=()):
        conf, output = self.top / "conf", self.top / f"{name}.log"
        log = f"-Dlog4j.configurationFile={conf}/log4j2.properties"
        argv = [java_program(), *flags, *OPENED, log, "-cp", self._classes, entry, "--configDir", conf, *words]
        return LocalProcess(Command(name=name, argv=[*map(str, argv)], log=output, env={"FLINK_CONF_DIR": str(conf)}))

    def start(self):
        """Start both; return the job."""
        self._master.start(lambda: self.found_jobs(), START_MS)
        self._worker.start(lambda: self.rest("overview")["slots-total"] == SLOTS, START_MS)
        return Job(self, self.found_jobs()[0]["id"])

    def close(self):
        """End both, the TaskManager first."""
        self._worker.stop(STOP_MS)
        self._master.stop(STOP_MS)

    def rest(self, path, body=None):
        """Get a path, or put a body there; return the answer."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        method = "GET" if body is None else "PUT"
        request = urllib.request.Request(f"http://{self.address}/{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read() or "null")

    def found_jobs(self):
        """Return the jobs; none while the JobManager starts."""
        try:
            return self.rest("jobs")["jobs"]
        except (urllib.error.URLError, ConnectionError):
            return []


class Job:
    """The job of a cluster."""

    def __init__(self, cluster, job_id):
        self.cluster, self.path = cluster, f"jobs/{job_id}"
        self._history = {}

    def runs_with(self, parallelism):
        """Return whether all subtasks run."""
        found = self.cluster.rest(self.path)
        running = [one["status"] == "RUNNING" and one["parallelism"] == parallelism for one in found["vertices"]]
        return found["state"] == "RUNNING" and all(running)

    def is_filled(self):
        """Return whether all keys are made; fail once the job has ended."""
        assert self.cluster.rest(self.path)["state"] in ("CREATED", "RUNNING"), "the job has failed"
        return all((self.cluster.top / f"filled-{split}").exists() for split in range(2))

    def rescale(self, parallelism):
        """Ask for a parallelism; return once all subtasks run."""
        path = f"{self.path}/resource-requirements"
        wanted = {"parallelism": {"lowerBound": 1, "upperBound": parallelism}}
        self.cluster.rest(path, dict.fromkeys(self.cluster.rest(path), wanted))
        wait_until(lambda: self.runs_with(parallelism), "all subtasks running", seconds=LIMIT_S)

    def completed(self, since):
        """Return the completed checkpoints that were triggered after a time, oldest first."""
        found = self.cluster.rest(f"{self.path}/checkpoints")["history"]
        self._history.update((one["id"], one) for one in found if one["status"] == "COMPLETED")
        return [one for _, one in sorted(self._history.items()) if one["trigger_timestamp"] > 1000 * since]

    def newest(self):
        """Return the number of the newest checkpoint whose metadata is written."""
        found = self.cluster.top.glob("checkpoints/*/chk-*/_metadata")
        return max((int(path.parent.name.removeprefix("chk-")) for path in found), default=-1)

    def marks(self):
        """Return the times of rows out of the aggregate."""
        *whole, _ = (self.cluster.top / "seen").read_text().split("\n")
        return sorted(map(float, whole))

    def wait_for_output(self, since):
        """Wait for rows well after a time, and for two checkpoints begun after it."""
        wait_until(lambda: self.marks()[-1] > since + AFTER_S, "output", seconds=LIMIT_S, step=0.2)
        wait_until(lambda: len(self.completed(since)) >= 2, "two checkpoints", seconds=LIMIT_S, step=0.2)


def fill(job, options):
    """Wait until all keys are there and checkpoints are short again; print the state's size."""
    began = time.time()
    wait_until(job.is_filled, "all keys", seconds=LIMIT_S, step=0.2)
    filled = time.time()
    job.wait_for_output(filled)
    job.wait_for_output(time.time() + options.settle)
    newest = job.completed(filled)[-1]
    told(
        state_mb=newest["state_size"] >> 20,
        keys=options.keys,
        backend=options.backend,
        fill_s=round(filled - began, 1),
        checkpoint_s=newest["end_to_end_duration"] / 1000,
    )


def measure(job, options):
    """Rescale again and again; print the longest times without output around each change, and their medians."""
    way, each = "rescale-and-back", {"gap_s": [], "published_gap_s": []}
    with Published(job.newest) as published:
        longest_of = lambda *span: {
            "gap_s": longest(job.marks(), *span),
            "published_gap_s": longest(published.times, *span),
        }
        since = time.time()
        job.wait_for_output(since + options.steady)
        first = time.time()
        before = {f"steady_{what}": gap for what, gap in longest_of(since, first).items()}
        for parallelism in (4, 2) * options.times:
            began = time.time()
            job.rescale(parallelism)
            running = time.time()
            job.wait_for_output(running)
            job.wait_for_output(time.time() + options.steady)
            gaps = longest_of(began)
            told(way=way, to=parallelism, running_s=round(running - began, 2), **gaps, **before)
            for what, gap in gaps.items():
                each[what].append(gap)
    after = {what: statistics.median(gaps) for what, gaps in each.items()}
    done = job.completed(first)
    after["checkpoint_s"] = max(one["end_to_end_duration"] for one in done) / 1000
    after["in_flight_bytes"] = max(one["persisted_data"] for one in done)
    told(way=way, **after, **before, each=each, load=round(os.getloadavg()[0], 1))


def main():
    """Print the state's size, and lines of JSON for each rescale and for all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=60_000_000)
    parser.add_argument("--sums", type=int, default=1, help="numbers of 60 bits in each key's state")
    parser.add_argument("--times", type=int, default=2, help="how often 2 -> 4 -> 2")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--backend", choices=["rocksdb", "forst"], default="rocksdb")
    parser.add_argument("--managed", default="4g", help="managed memory of the TaskManager")
    parser.add_argument("--heap", type=int, default=2048, help="MB of the tasks' heap")
    parser.add_argument("--interval", default="1s")
    parser.add_argument("--settle", type=float, default=5.0, help="seconds at the steady rate before the measurement")
    parser.add_argument("--steady", type=float, default=18.0, help="seconds of output before and after each change")
    options = parser.parse_args()
    installation.ensure()
    with tempfile.TemporaryDirectory(dir=options.folder) as top:
        cluster = Cluster(top, options)
        try:
            job = cluster.start()
            fill(job, options)
            measure(job, options)
        finally:
            cluster.close()


if __name__ == "__main__":
    main()
