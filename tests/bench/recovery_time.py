"""How long output stands still when a process is killed: `python -m tests.bench.recovery_time [--victim worker]`.

Windows of 200 ms event time at 50,000 events a second, a checkpoint a second, a million keys of state; event time is
the wall clock of the producer. Measured from SIGKILL to the first published record whose window begins after the kill.
"""

import argparse
import contextlib
import json
import os
import runpy
import signal
import statistics
import sys
import threading
import time

from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition
from tests.bench.servers import kafka_and_minio
from tests.cluster.orders import create_topics, micros
from tests.cluster.stage import s3_environment
from tests.support.waiting import wait_until

from penstock.api.environment import use_executor
from penstock.client.executors import ClusterExecutor
from penstock.client.local_cluster import LocalCluster, LocalClusterConfig
from penstock.core.errors import PenstockError

RATE, KEYS, PARTITIONS, TICK_S = 50_000, 1_000_000, 4, 0.02
WINDOW_MS, DISORDER_MS = 200, 50
SETTLE_S, LIMIT_S = 4.0, 60.0
#: Within this time the metrics of a restart are known.
METRICS_S = 2.0
#: Keys a second that are produced, and taken by the job, at least.
LEAST_LOAD_RATE = 20_000
SLOW_MODULE = "import time\n\ntime.sleep(1)\n\n\ndef keep(batch: pa.RecordBatch) -> pa.RecordBatch:\n    return batch\n"

JOB = """
from datetime import datetime

import polars as pl
import penstock as ps
from penstock_connectors.kafka import KafkaSink, KafkaSource
{slow_import}

class Order(ps.Schema):
    user_id: int
    amount: int
    ts: datetime


# Ten kills a minute are one failure each, not a job that keeps failing: the delay must not grow.
env = ps.Environment(
    parallelism=2, checkpoint_interval={interval!r}, checkpoint_root={root!r}, restart="fixed-delay"{more}
)
orders = env.from_source(
    KafkaSource({bootstrap!r}, topic={source!r}, schema=Order, start="earliest"),
    watermarks=ps.WatermarkStrategy.bounded_out_of_orderness("{disorder}ms", timestamp="ts"), uid="orders",
)
(orders{slow_call}.with_columns((pl.col("user_id") % 100).alias("shop"))
       .key_by("shop").window(ps.Tumbling("{window}ms"))
       .aggregate(n=ps.count(), total=ps.sum("amount")).uid("totals")
       .sink_to(KafkaSink({bootstrap!r}, topic={sink!r}, delivery="exactly-once"), uid="out"))
(orders.key_by("user_id").window(ps.Tumbling("20h"))
       .aggregate(n=ps.count(), total=ps.sum("amount")).uid("users")
       .sink_to(KafkaSink({bootstrap!r}, topic={sink!r}, delivery="exactly-once"), uid="never"))
env.execute("recovery-time")
"""


#: Order `i` is of user `i * STRIDE % keys`, with amount `i % AMOUNTS`.
STRIDE, AMOUNTS = 7919, 1000


class Live(threading.Thread):
    """Produces at a steady rate with the wall clock as event time; first, as fast as it can, one order of every key.

    Then come `backlog_s` seconds of orders at once, as if it had produced since so long ago.
    """

    def __init__(self, bootstrap, topic, rate, keys, backlog_s=0):
        super().__init__(name="live", daemon=True)
        self.rate, self.keys, self._backlog_s = rate, keys, backlog_s
        self.ended, self.loaded = threading.Event(), threading.Event()
        #: Orders sent after the one of every key.
        self.sent = 0
        self.behind_s = 0.0
        self._topic = topic
        settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5}
        self._producer = Producer({**settings, "queue.buffering.max.messages": 2_000_000})

    def run(self):
        begin_ms = int((time.time() - self._backlog_s) * 1000)
        self._send(range(self.keys), begin_ms)
        for second in range(self._backlog_s):
            self._send_until((second + 1) * self.rate, begin_ms + second * 1000)
            self._producer.flush()
        self._producer.flush()
        self.loaded.set()
        backlog, started = self.sent, time.monotonic()
        while not self.ended.is_set():
            due = int((time.monotonic() - started) * self.rate)
            self._send_until(backlog + due, int(time.time() * 1000))
            self.behind_s = time.monotonic() - started - due / self.rate
            self.ended.wait(TICK_S)
        self._producer.flush(10)

    def _send_until(self, due, now_ms):
        self._send(range(self.sent, due), now_ms)
        self.sent = due

    def _send(self, indexes, now_ms):
        for i in indexes:
            value = b'{"user_id":%d,"amount":%d,"ts":%d}' % (i * STRIDE % self.keys, i % AMOUNTS, now_ms)
            self._producer.produce(self._topic, value, partition=i % PARTITIONS)
            if i % 10_000 == 0:
                self._producer.poll(0)
        self._producer.poll(0)


class Reader(threading.Thread):
    """Reads the published output; keeps (time of arrival, newest window start) in seconds."""

    def __init__(self, bootstrap, topic):
        super().__init__(name="reader", daemon=True)
        self.ended = threading.Event()
        self.seen = []
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "bench", "isolation.level": "read_committed"}
        )
        self._consumer.assign([TopicPartition(topic, p, OFFSET_END) for p in range(2)])

    def run(self):
        while not self.ended.is_set():
            messages = [m for m in self._consumer.consume(2_000, timeout=0.02) if m.error() is None]
            if messages:
                newest = max(micros(json.loads(m.value())["window_start"]) for m in messages) / 1e6
                self.seen.append((time.time(), newest))
        self._consumer.close()

    def first_after(self, moment):
        return next((at for at, start in list(self.seen) if start >= moment), None)


def write_job(folder, kafka, *, slow, interval, more):
    """The job file; with `slow`, a function of the user's from a module that takes a second to import.

    `more`: further keywords of `ps.Environment`.
    """
    if slow:
        (folder / "slow_module.py").write_text("import pyarrow as pa\n" + SLOW_MODULE, encoding="utf-8")
        sys.path.insert(0, str(folder))
    path = folder / "recovery_job.py"
    path.write_text(
        JOB.format(
            slow_import="import slow_module\n" if slow else "",
            slow_call=".map_batches(slow_module.keep, returns=Order)" if slow else "",
            root="s3://bench/recovery", interval=interval, bootstrap=kafka.bootstrap, source="orders", sink="totals",
            disorder=DISORDER_MS, window=WINDOW_MS, more=more,
        ),
        encoding="utf-8",
    )  # fmt: skip
    return path


def submit(cluster, path):
    with use_executor(ClusterExecutor(url=cluster.rest_url, detached=True), {}) as results:
        runpy.run_path(str(path), run_name="__main__")
    return results[0].job_id


def victim_of(cluster, job_id, victim, number):
    if victim == "jobmanager":
        return cluster.jobmanager.pid
    if victim == "taskmanager":
        return cluster.taskmanagers[number % 2].pid
    with cluster.client() as rest:
        workers = rest.workers(job_id)
    return int(workers[number % len(workers)]["pid"])


def up_to_date(reader):
    """Whether the newest output is of the last seconds."""
    seen = reader.seen[-1:] or [(0.0, 0.0)]
    return time.time() - seen[0][1] < 4.0


def measure(cluster, job_id, reader, options):
    """Kill again and again, at another moment of the checkpoint interval each time."""
    times = []
    for number in range(options.kills):
        wait_until(lambda: up_to_date(reader), "output that keeps up with the input", seconds=LIMIT_S, step=0.05)
        time.sleep(SETTLE_S + number / options.kills)
        pid = victim_of(cluster, job_id, options.victim, number)
        killed = time.time()
        os.kill(pid, signal.SIGKILL)
        published = wait_until(
            lambda at=killed: reader.first_after(at), "output after the kill", seconds=LIMIT_S, step=0.005
        )
        times.append(round(published - killed, 3))
        if options.story:
            with cluster.client() as rest:
                tell(rest, job_id, killed)
        time.sleep(METRICS_S)
        read = ", ".join(f"{way} {size >> 20}" for way, size in bytes_read(cluster, job_id).items())
        print(f"kill {number + 1}: {options.victim} {pid}, {times[-1]} s; MB read: {read}", flush=True)
    return times


def tell(rest, job_id, since):
    """Print what the JobManager did after a moment, in seconds from it."""
    for entry in rest.story(job_id):
        if entry["at_ms"] / 1000 > since:
            print(f"  {entry['at_ms'] / 1000 - since:6.3f} {entry['kind']} {entry['text']}", flush=True)


def state_bytes(cluster, job_id):
    """Bytes of state in the newest checkpoint."""
    with cluster.client() as rest:
        return rest.checkpoints(job_id)["latest"]["completed"]["state_size"]


def bytes_read(cluster, job_id):
    """Bytes of state that the present workers have read since their start, from local copies and from the store."""
    with cluster.client() as rest:
        tasks = rest.metrics(job_id).values()
    return {way: sum(int(task.get(f"numStateBytesRead{way}", 0)) for task in tasks) for way in ("Local", "Remote")}


def delays(reader):
    """Without a kill: from the beginning of a window to its publication."""
    return [at - start for at, start in reader.seen]


@contextlib.contextmanager
def live_job(options, *, slow=False, interval="1s", more="", **cluster_options):
    """The job on a cluster of its own, once its output keeps up with input at `options.rate` over `options.keys`."""
    with contextlib.ExitStack() as stack:
        folder, kafka, minio = stack.enter_context(kafka_and_minio())
        create_topics(kafka.bootstrap, orders=PARTITIONS, totals=2)
        environment = s3_environment(minio)
        path = write_job(folder, kafka, slow=slow, interval=interval, more=more)
        config = LocalClusterConfig(directory=folder / "cluster", environment=environment, **cluster_options)
        cluster = stack.enter_context(LocalCluster(config))
        live, reader = Live(kafka.bootstrap, "orders", options.rate, options.keys), Reader(kafka.bootstrap, "totals")
        stack.callback(live.ended.set)
        stack.callback(reader.ended.set)
        live.start()
        assert live.loaded.wait(120 + options.keys / LEAST_LOAD_RATE)
        reader.start()
        job_id = submit(cluster, path)
        limit = LIMIT_S * 2 + options.keys / LEAST_LOAD_RATE
        wait_until(lambda: up_to_date(reader), "output that keeps up with the input", seconds=limit, step=0.05)
        time.sleep(SETTLE_S)
        yield cluster, job_id, live, reader
        with contextlib.suppress(PenstockError), cluster.client() as rest:
            rest.cancel(job_id)
        live.ended.set()
        reader.ended.set()
        live.join(15)
        reader.join(15)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--interval", default="1s", help="checkpoint interval")
    parser.add_argument("--rate", type=int, default=RATE, help="events a second")
    parser.add_argument("--keys", type=int, default=KEYS, help="keys of state")
    parser.add_argument("--victim", choices=("worker", "taskmanager", "jobmanager"), default="worker")
    parser.add_argument("--story", action="store_true", help="print what the JobManager did after each kill")
    parser.add_argument("--slow-import", action="store_true", help="the job imports a module that takes a second")
    parser.add_argument("--backend", choices=("hashmap", "rocksdb", "remote"), default="hashmap")
    parser.add_argument("--memory", help="managed memory of a worker, such as 2GB")
    parser.add_argument("--unaligned", action="store_true", help="let barriers overtake rows, and rows wait for state")
    options = parser.parse_args()
    more = f", state_backend={options.backend!r}" + (f", managed_memory={options.memory!r}" if options.memory else "")
    more += ", unaligned_checkpoints=True" if options.unaligned else ""
    job = {"slow": options.slow_import, "interval": options.interval, "more": more}
    with live_job(options, **job) as (cluster, job_id, live, reader):
        steady = sorted(delays(reader)[-20:])
        state = state_bytes(cluster, job_id)
        times = measure(cluster, job_id, reader, options)
    figures = {
        "victim": options.victim, "kills": len(times), "p50_s": round(statistics.median(times), 3), "max_s": max(times),
        "steady_delay_p50_s": round(statistics.median(steady), 3), "slow_import": options.slow_import,
        "rate": options.rate, "keys": options.keys, "producer_behind_s": round(live.behind_s, 2),
        "interval": options.interval, "backend": options.backend, "state_mb": state >> 20,
        "load": round(os.getloadavg()[0], 1),
    }  # fmt: skip
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
