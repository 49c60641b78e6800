"""Whether a job with a backlog catches up under kills on a busy machine: `python -m tests.bench.kill_soak`.

The job of `row_state` (a value, two maps and a timer for each key) from Kafka to Kafka, exactly once, `rocksdb` with
little managed memory, state on MinIO. Workers are killed (SIGKILL) for part of the time; input goes on at a steady rate
beside --busy busy processes. Judged from outside: each order counts once; the lag of the committed offsets returns to
--lag seconds (median of the last 20 s, in which all timers fire once); the only cause of a restart is a killed worker,
never an expired checkpoint.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from confluent_kafka import Consumer, TopicPartition
from tests.bench.recovery_time import AMOUNTS, PARTITIONS, STRIDE, Live
from tests.bench.row_state_job import COUNTED, GROUP, ORDERS
from tests.bench.servers import kafka_and_minio
from tests.cluster.orders import create_topics, read_messages
from tests.cluster.stage import cli, s3_environment
from tests.support.waiting import wait_until

from penstock.client.handle import JobHandle
from penstock.client.local_cluster import LocalCluster, LocalClusterConfig

JOB, NAME = Path(__file__).with_name("row_state_job.py"), "row-state-bench"
SAMPLE_S, LIMIT_S = 2.0, 300.0
LAST_SAMPLES = 10
#: Part of the time with kills.
KILLED_PART = 0.6
#: In the failure of a checkpoint that expired, and in that of a killed worker.
EXPIRED, KILLED = "not complete after", "killed by SIGKILL"


def expected(keys, sent):
    """Orders and amounts of each user: one order of every key, then the first `sent` ones."""
    numbers = np.concatenate([np.arange(keys), np.arange(sent)])
    users, amounts = numbers * STRIDE % keys, numbers % AMOUNTS
    return np.bincount(users, minlength=keys), np.bincount(users, amounts, minlength=keys).astype(np.int64)


def counted(bootstrap, keys):
    """The same from the published output, and its number of rows."""
    rows = [json.loads(message.value()) for message in read_messages(bootstrap, COUNTED)]
    users = np.array([row["user_id"] for row in rows], np.int64)
    orders, totals = np.zeros(keys, np.int64), np.zeros(keys, np.int64)
    np.add.at(orders, users, [row["orders"] for row in rows])
    np.add.at(totals, users, [row["total"] for row in rows])
    return orders, totals, len(rows)


class Lag:
    """Rows between the ends of the input and the offsets that the job has committed with its checkpoints."""

    def __init__(self, bootstrap):
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, "enable.auto.commit": False})
        self._partitions = [TopicPartition(ORDERS, p) for p in range(PARTITIONS)]

    def rows(self):
        ends = [self._consumer.get_watermark_offsets(p, timeout=30)[1] for p in self._partitions]
        committed = [max(0, p.offset) for p in self._consumer.committed(self._partitions, timeout=30)]
        return sum(ends) - sum(committed)

    def close(self):
        self._consumer.close()


class Soak:
    """One run: kills, then none; keeps the lag and each failure."""

    def __init__(self, rest, job_id, lag, options):
        self.rest, self.job_id, self.options = rest, job_id, options
        self.kills, self.lags, self.failures, self.expired = 0, [], {}, {}
        self.caught_up_s = None
        self._lag = lag

    def run(self):
        options, begun = self.options, time.monotonic()
        killing_s, next_kill = options.seconds * KILLED_PART, options.kill_every
        while (now := time.monotonic() - begun) < options.seconds:
            if next_kill <= now < killing_s and self._kill():
                next_kill = now + options.kill_every
            self._sample(now, killing_s)
            time.sleep(min(SAMPLE_S, max(0.1, next_kill - now)) if now < killing_s else SAMPLE_S)

    def _kill(self):
        """Kill a worker; return whether there was one."""
        workers = self.rest.workers(self.job_id)
        if not workers:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(workers[self.kills % len(workers)]["pid"]), signal.SIGKILL)
            self.kills += 1
        return True

    def _sample(self, now, killing_s):
        lag_s = self._lag.rows() / self.options.rate
        self.lags.append((round(now), round(lag_s, 1)))
        if self.caught_up_s is None and now >= killing_s and lag_s <= self.options.lag:
            self.caught_up_s = round(now - killing_s, 1)
        self.look()
        done = self.rest.summary(self.job_id)
        told = {"s": round(now), "lag_s": round(lag_s, 1), "kills": self.kills, "restarts": done["restarts"]}
        told |= {"checkpoints": done["checkpoints-completed"], "expired": len(self.expired)}
        print(json.dumps(told | {"load": round(os.getloadavg()[0], 1)}), flush=True)

    def look(self):
        """Keep failures and expired checkpoints: the job shows only the newest."""
        for failure in self.rest.exceptions(self.job_id)["exceptionHistory"]["entries"]:
            self.failures[failure["timestamp"], failure["exceptionName"]] = failure["stacktrace"]
        for one in self.rest.checkpoints(self.job_id)["history"]:
            if EXPIRED in one.get("failure_message", ""):
                self.expired[one["id"]] = one["failure_message"]

    def check_causes(self):
        """Check that only killed workers made the job restart."""
        self.look()
        assert not (found := others(self.failures)), (
            f"the job restarted for another cause than a killed worker: {found}"
        )

    def wait_until_read(self):
        """Wait until the job has committed the end of its input."""
        read = lambda: self._lag.rows() == 0
        wait_until(read, lambda: f"{self._lag.rows()} rows to be read", seconds=LIMIT_S, step=0.5)


def others(failures):
    """Return the failures whose cause is not a killed worker."""
    return [text for (_, name), text in failures.items() if KILLED not in name + text or EXPIRED in name + text]


@contextlib.contextmanager
def servers(options):
    """Kafka, MinIO, the input and a cluster beside busy processes; yields (cluster, its environment, Kafka, input)."""
    with contextlib.ExitStack() as stack:
        folder, kafka, minio = stack.enter_context(kafka_and_minio())
        create_topics(kafka.bootstrap, **{ORDERS: PARTITIONS, COUNTED: 2})
        environment = s3_environment(minio)
        config = LocalClusterConfig(directory=folder / "cluster", environment=environment)
        cluster = stack.enter_context(LocalCluster(config))
        live = Live(kafka.bootstrap, ORDERS, options.rate, options.keys, options.backlog)
        stack.callback(live.ended.set)
        live.start()
        assert live.loaded.wait(LIMIT_S)
        for _ in range(options.busy):
            stack.callback(subprocess.Popen([sys.executable, "-c", "while True: pass"]).kill)
        yield cluster, environment, kafka, live


def submit(cluster, environment, kafka, options):
    """Start the job file as a user does; return the job's id."""
    variables = {
        "BENCH_FOLDER": "s3://bench/soak", "BENCH_KAFKA": kafka.bootstrap, "BENCH_BACKEND": options.backend,
        "BENCH_MEMORY": options.memory, "BENCH_INTERVAL": options.interval, "BENCH_TIMEOUT": options.timeout,
    }  # fmt: skip
    target = f"buffer_debloat_target_ms={options.target}"
    arguments = ("run", JOB, "--cluster", cluster.rest_url, "--detached", "--set", target)
    done = cli(*arguments, cwd=cluster.directory, environment=environment | variables)
    assert done.code == 0, done.err
    with cluster.client() as rest:
        return rest.jobs()[0]["jid"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=300.0, help="from the submit; kills for the first 60 %%")
    parser.add_argument("--kill-every", type=float, default=8.0, help="seconds")
    parser.add_argument("--rate", type=int, default=5_000, help="orders a second")
    parser.add_argument("--keys", type=int, default=60_000)
    parser.add_argument("--memory", default="2MB", help="managed memory of a worker")
    parser.add_argument("--backlog", type=int, default=120, help="seconds of orders that wait at the start")
    parser.add_argument("--backend", choices=("hashmap", "rocksdb", "remote"), default="rocksdb")
    parser.add_argument("--interval", default="2s", help="checkpoint interval")
    parser.add_argument("--timeout", default="30s", help="checkpoint timeout")
    parser.add_argument("--busy", type=int, default=2, help="busy processes beside it")
    parser.add_argument("--lag", type=float, default=5.0, help="most seconds of input not committed at the end")
    parser.add_argument("--target", type=int, default=1_000, help="ms of rows in flight; 0: bounded by buffers alone")
    options = parser.parse_args()
    with servers(options) as (cluster, environment, kafka, live), contextlib.closing(Lag(kafka.bootstrap)) as lag:
        job_id = submit(cluster, environment, kafka, options)
        with cluster.client() as rest:
            soak = Soak(rest, job_id, lag, options)
            soak.run()
            soak.check_causes()  # a job that restarts again and again never reads the rest
            live.ended.set()
            live.join(LIMIT_S)
            soak.wait_until_read()
            soak.check_causes()
            restarts, checkpoints = (rest.summary(job_id)[n] for n in ("restarts", "checkpoints-completed"))
            JobHandle(rest, job_id, NAME).stop(drain=True)
        orders, totals, rows = counted(kafka.bootstrap, options.keys)
    right = expected(options.keys, live.sent)
    wrong = int(np.count_nonzero((orders != right[0]) | (totals != right[1])))
    last = [seconds for _, seconds in soak.lags[-LAST_SAMPLES:]]
    figures = {
        "orders": options.keys + live.sent, "rows": rows, "wrong_keys": wrong, "kills": soak.kills,
        "restarts": restarts, "expired": soak.expired,
        "checkpoints": checkpoints, "largest_lag_s": max(seconds for _, seconds in soak.lags),
        "last_lags_s": last, "caught_up_s": soak.caught_up_s, "producer_behind_s": round(live.behind_s, 2),
        "load": round(os.getloadavg()[0], 1),
    }  # fmt: skip
    print(json.dumps(figures))
    assert not wrong, f"{wrong} keys are wrong: {orders.sum()} orders were counted, {right[0].sum()} sent"
    assert statistics.median(last) <= options.lag, f"the lag at the end is {last} s"


if __name__ == "__main__":
    main()
