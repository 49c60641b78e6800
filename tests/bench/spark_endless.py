"""An endless job on a Spark standalone cluster under faults: `python -m tests.bench.spark_endless [--mode cluster]`.

Kafka to Kafka, exactly once, state on S3: executors killed (SIGKILL), the driver killed and started again by the same
command, a Worker decommissioned, the job rescaled from 2 to 4 to 2. A read-committed reader judges the whole output.
The gap of a fault is the longest silence of that reader until output comes after the job's second checkpoint.
"""

import argparse
import contextlib
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from tests.bench.servers import kafka_and_minio
from tests.cluster import proc_tree
from tests.cluster.job_file import Job
from tests.cluster.orders import PARTITIONS, Feed, Orders, create_topics, read_windows, verdict
from tests.cluster.stage import s3_environment
from tests.spark.standalone import Standalone
from tests.support.waiting import wait_until

from penstock.client.rest_client import RestClient
from penstock.core.errors import PenstockError

NAME, LIMIT_S = "endless", 300.0
#: Event time passes five times as fast as at one order a millisecond, so that windows come out several times a second.
STEP_MS = 5.0
SETTINGS = {
    "spark.executor.cores": "1",
    "spark.executor.memory": "1g",
    "spark.driver.memory": "512m",
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.executorIdleTimeout": "10s",
}


class Reader(threading.Thread):
    """Reads the output as a consumer does, and keeps when something came."""

    def __init__(self, bootstrap, topic):
        super().__init__(name="reader", daemon=True)
        self.ended, self.arrivals = threading.Event(), [time.monotonic()]
        settings = {"bootstrap.servers": bootstrap, "group.id": "bench", "isolation.level": "read_committed"}
        self._consumer = Consumer(settings)
        self._consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(2)])

    def run(self):
        while not self.ended.is_set():
            if any(message.error() is None for message in self._consumer.consume(5_000, timeout=0.05)):
                self.arrivals.append(time.monotonic())
        self._consumer.close()

    def gap_s(self, since):
        """The longest silence between a moment and now."""
        times = [at for at in list(self.arrivals) if at > since]
        before = max(at for at in list(self.arrivals) if at <= since)
        return max(b - a for a, b in zip([before, *times], [*times, time.monotonic()], strict=True))


class Deployed:
    """The job as a user starts it: one command for it alone, or a standing cluster and a submit."""

    def __init__(self, folder, spark, environment, job, mode):
        self.folder, self.mode, self._job = folder, mode, job
        self.environment = {**os.environ, **environment, "PENSTOCK_HOME": str(folder / "home"), "NO_COLOR": "1"}
        self.environment["SPARK_LOCAL_IP"] = "127.0.0.1"
        settings = {**SETTINGS, **{f"spark.executorEnv.{name}": value for name, value in environment.items()}}
        conf = [part for name, value in settings.items() for part in ("--spark-conf", f"{name}={value}")]
        bounds = ("--master", spark.url, "--taskmanagers", "2..4", "--slots", "1", "--taskmanager-timeout", "5s")
        if mode == "run":
            self._start = ("run", str(job), "--engine", "spark", *bounds, *conf)
        else:
            self._start = ("cluster", "start", "--provider", "spark", "--rest-port", "0", *bounds, *conf)
        self.starts, self.pid, self.url = 0, 0, ""
        self._process = None

    def start(self):
        """Start it, or start it again, by the same command; return once the JobManager answers."""
        self.starts += 1
        if self.mode == "cluster":
            self(*self._start)
            record = json.loads((self.folder / "home" / "cluster.json").read_text())
            self.pid, self.url = record["pid"], record["rest"]
            if self.starts == 1:
                self("run", str(self._job), "--cluster", self.url, "--detached")
            return
        log = self.folder / f"run-{self.starts}.log"
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                self._command(*self._start), env=self.environment, cwd=self.folder, stdout=out, stderr=out
            )
        self.pid = self._process.pid

        def address():
            assert self._process.poll() is None, log.read_text()[-2000:]
            return re.search(r"the JobManager is at (\S+)", log.read_text())

        self.url = wait_until(address, lambda: log.read_text()[-2000:], seconds=LIMIT_S, step=0.1)[1]

    def kill_driver(self):
        """Kill the process of the command; what it has started ends by itself."""
        os.kill(self.pid, signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def kill_jvm(self):
        """Kill Spark's driver in its JVM; the command ends with an error."""
        jvms = [pid for pid in proc_tree.descendants(self.pid) if b"SparkSubmit" in _command_of(pid)]
        proc_tree.signal_all(jvms, signal.SIGKILL)
        wait_until(lambda: not proc_tree.alive(self.pid), "the end of the command", seconds=LIMIT_S, step=0.1)
        if self._process is not None:
            assert self._process.wait() != 0

    def end(self):
        """Kill what is left."""
        if self.pid:
            proc_tree.signal_all([self.pid, *proc_tree.descendants(self.pid)], signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def __call__(self, *arguments):
        done = subprocess.run(
            self._command(*arguments), env=self.environment, cwd=self.folder, capture_output=True, text=True,
            timeout=LIMIT_S * 4, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _command(self, *arguments):
        return [sys.executable, "-m", "penstock.cli.main", *arguments]


def _command_of(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


class Scenario:
    """The faults, in order; each is followed by a wait for two checkpoints of the job with all its workers."""

    def __init__(self, spark, deployed, reader, chance):
        self.spark, self.deployed, self.reader, self.chance = spark, deployed, reader, chance
        self.width, self.gaps = 2, {}

    def summary(self):
        with contextlib.suppress(PenstockError), RestClient(self.deployed.url) as rest:
            return rest.summary(NAME)
        return {}

    def workers(self):
        with contextlib.suppress(PenstockError), RestClient(self.deployed.url) as rest:
            return rest.workers(NAME)
        return []

    def settled(self, *, failed=None):
        """Wait for the job with all workers, and for two more checkpoints; `failed`: restarts before."""

        def runs():
            summary = self.summary()
            there = summary.get("state") == "RUNNING" and len(self.workers()) == self.width
            return summary if there and (failed is None or summary["restarts"] > failed) else None

        told = lambda: f"{self.width} workers: {self.summary()}"
        base = wait_until(runs, told, seconds=LIMIT_S, step=0.1)["checkpoints-completed"]
        more = lambda: (runs() or {}).get("checkpoints-completed", 0) >= base + 2
        wait_until(more, lambda: f"two checkpoints: {self.summary()}", seconds=LIMIT_S, step=0.1)

    def output_after(self, moment):
        wait_until(lambda: self.reader.arrivals[-1] > moment, "output", seconds=LIMIT_S, step=0.1)

    def fault(self, kind, action, **after):
        time.sleep(self.chance.uniform(0.5, 1.5))  # at another moment of the checkpoint interval
        begun = time.monotonic()
        action()
        self.settled(**after)
        self.output_after(time.monotonic())
        gap = round(self.reader.gap_s(begun), 2)
        self.gaps.setdefault(kind, []).append(gap)
        print(f"{kind}: gap {gap} s, settled after {time.monotonic() - begun:.1f} s", flush=True)

    def kill_executor(self):
        before = self.summary()["restarts"]
        victim = self.chance.choice([pid for pids in self.spark.used().values() for pid in pids])
        self.fault("executor killed", lambda: os.kill(victim, signal.SIGKILL), failed=before)

    def kill_driver(self, kill):
        def again():
            kill()
            if self.deployed.mode == "run":
                self.width = 2  # the job file's own
            self.deployed.start()

        self.fault("driver killed" if kill == self.deployed.kill_driver else "driver's JVM killed", again)

    def rescale(self, width):
        def ask():
            self.deployed("rescale", NAME, str(width), "--cluster", self.deployed.url)
            self.width = width

        self.fault(f"rescaled {self.width} to {width}", ask)
        count = lambda: sum(map(len, self.spark.executors().values()))
        wait_until(lambda: count() == width, lambda: f"{width} executors, not {count()}", seconds=LIMIT_S, step=0.5)

    def decommission(self):
        """The Worker with the most executors; its executors end, and the job does not fail."""
        before = self.summary()["restarts"]
        used = self.spark.used()
        number = max(used, key=lambda n: len(used[n]))

        def leave():
            self.spark.decommission(number)
            left = lambda: self.spark.executors()[number]
            wait_until(lambda: not left(), lambda: f"the end of executors {left()}", seconds=LIMIT_S, step=0.1)

        self.fault("worker decommissioned", leave)
        assert self.summary()["restarts"] == before, "it left without a failure"
        assert "away from" in self.deployed("story", NAME, "--cluster", self.deployed.url)

    def run(self):
        driver, jvm = self.deployed.kill_driver, self.deployed.kill_jvm
        self.settled()
        self.output_after(time.monotonic())
        for _ in range(3):
            self.kill_executor()
        self.decommission()
        self.kill_executor()
        self.rescale(4)
        for _ in range(3):
            self.kill_executor()
        self.rescale(2)
        self.kill_driver(driver)
        self.kill_executor()
        self.kill_driver(driver)
        for _ in range(2):
            self.kill_executor()
        self.kill_driver(jvm)
        self.kill_driver(driver)


def finish(deployed, scenario, feed):
    """Send the rest of the input, wait until it is read, and stop the job with all its windows."""
    feed.join(seconds=LIMIT_S)
    unread = lambda: (scenario.summary().get("rows-unread") or {"": None}).values()
    base = scenario.summary()["checkpoints-completed"]  # metrics are as old as a checkpoint at most
    newer = lambda: scenario.summary().get("checkpoints-completed", 0) >= base + 3
    read = lambda: newer() and all(count == 0 for count in unread())
    wait_until(read, lambda: f"the whole input to be read: {list(unread())}", seconds=LIMIT_S, step=0.5)
    deployed("stop", NAME, "--drain", "--cluster", deployed.url)
    if deployed.mode == "cluster":
        deployed("cluster", "stop")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mode", choices=("run", "cluster"), default="run")
    parser.add_argument("--rate", type=int, default=400, help="orders a second")
    parser.add_argument("--seconds", type=int, default=900, help="how long the input lasts at that rate, at most")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    orders = Orders(options.seed, 2 * options.rate * options.seconds, step_ms=STEP_MS)
    with contextlib.ExitStack() as stack:
        folder, kafka, minio = stack.enter_context(kafka_and_minio())
        create_topics(kafka.bootstrap, orders=PARTITIONS, totals=2)
        job = Job(NAME, kafka.bootstrap, "orders", "totals", "s3://bench/endless", interval="1s",
                  environment='restart="fixed-delay"')  # fmt: skip
        feed, reader = Feed(kafka.bootstrap, "orders", orders, options.rate), Reader(kafka.bootstrap, "totals")
        spark = stack.enter_context(Standalone(folder, workers=3, cores=2))
        deployed = Deployed(folder, spark, s3_environment(minio), job.write(folder), options.mode)
        stack.callback(deployed.end)
        stack.callback(reader.ended.set)
        stack.callback(feed.end)
        reader.start()
        feed.start()
        scenario = Scenario(spark, deployed, reader, random.Random(options.seed))
        started = time.monotonic()
        try:
            deployed.start()
            scenario.run()
            finish(deployed, scenario, feed)
        except BaseException:
            for log in sorted([*folder.glob("run-*.log"), *folder.glob("home/cluster.log")]):
                print(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}", file=sys.stderr)
            raise
        rows = read_windows(kafka.bootstrap, "totals")
        found = verdict(orders, rows)
    gaps = {
        kind: {"times": len(times), "median_s": round(statistics.median(times), 2), "largest_s": max(times)}
        for kind, times in scenario.gaps.items()
    }
    print(json.dumps({"mode": options.mode, "orders": orders.events, "windows": len(rows), "verdict": str(found),
                      "gaps": gaps, "starts": deployed.starts,
                      "seconds": round(time.monotonic() - started)}))  # fmt: skip


if __name__ == "__main__":
    main()
