"""How long output stands still when a job with much state is changed: `python -m tests.bench.rewrite_downtime`.

A running aggregate of generated orders begins with a table of --keys users, on a local cluster. It writes down when its
rows come out. Measured is the longest time without one, around each way of changing the job, and the longest between
two completed checkpoints, which publish output; both beside those of the same job before the change. Also the longest
checkpoint after the change, and the most bytes of rows in flight in one.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from tests.bench.recovery_time import tell
from tests.cluster.stage import _Capture
from tests.support.waiting import wait_until

from penstock.api.environment import use_executor
from penstock.cli.start.run import execute_file
from penstock.client.executors import ClusterExecutor, SubmitOptions
from penstock.client.local_cluster import LocalCluster, LocalClusterConfig
from penstock.snapshots.access.declared import with_states
from penstock.snapshots.access.opening import open_snapshot
from penstock.snapshots.rewrite.parts import finish, new_target, plan_write, write_part
from penstock.snapshots.rewrite.repartition import state_bytes
from penstock.snapshots.rewrite.writing import state_rows

CLI = [sys.executable, "-m", "penstock.cli.main"]
LIMIT_S = 1_800
#: Rows that are made at a time.
PART = 1_000_000
#: Rows of the first second after a start do not count as output that keeps up.
AFTER_S = 2.0
JOB = """
import time

import polars as pl
import pyarrow as pa
import penstock as ps
from penstock_connectors.datagen import DatagenSource


class Total(ps.Schema):
    n: int
    total: int


def seen(rows: pa.RecordBatch) -> pa.RecordBatch:
    with open({seen!r}, "a") as file:
        file.write(f"{{time.time()}}\\n")
    return rows


WIDE = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in ("user_id", *{summed})])


def widened(rows: pa.RecordBatch) -> pa.RecordBatch:
    amounts = [rows["amount"]] * len({summed})
    return pa.RecordBatch.from_arrays([rows["user_id"], *amounts], schema=WIDE)


env = ps.Environment(
    parallelism={parallelism}, checkpoint_interval={interval!r}, checkpoint_root={root!r}, key_groups={groups},
    managed_memory={memory!r}, state_backend={backend!r}, unaligned_checkpoints={unaligned},
)
orders = env.from_source(DatagenSource(users={users}, rows_per_second=5000), uid="orders")
orders = orders.map_batches(widened, returns=WIDE)
sums = {{name: ps.sum(name) for name in {summed}}}
totals = {keyed}.aggregate(n=ps.count(), **sums).uid("totals")
shown = totals.select("n", pl.sum_horizontal({summed}).alias("total")).map_batches(seen, returns=Total)
shown = shown.filter(pl.col("n") < 0)
shown.print("none")
env.execute({name!r})
"""
BY_NUMBER = 'orders.key_by("user_id")'
BY_TEXT = 'orders.with_columns(user=pl.col("user_id").cast(pl.String)).key_by("user")'
REKEY = ["--uid", "totals", "--key", "user=CAST(user_id AS VARCHAR)"]


class Scene:
    """A cluster, and the state that every job begins with."""

    def __init__(self, top, options, slots, spark=()):
        self.top, self.keys, self.options = Path(top), options.keys, options
        #: When each change of the job began that is measured.
        self.changes = []
        #: Words of `penstock state` with which whole states are rewritten on Spark.
        self.spark = spark
        self.cluster = LocalCluster(
            LocalClusterConfig(taskmanagers=1, slots_per_taskmanager=slots, directory=self.top / "cluster")
        )
        self.cluster.start()
        self.began = options.begin or self.written(str(self.top / "begin"))

    def written(self, uri):
        """Write the state that jobs begin with, and return its URI."""
        graph = with_states(self.graph("begin"))
        plan = plan_write(graph, state_rows(graph, "totals", "running", "bench"), new_target(uri, "0" * 12), "")
        finish(plan, [write_part(plan, self.rows(), "0")])
        return uri

    def rows(self):
        """Yield the table of users, a million at a time."""
        random = np.random.default_rng(1)
        for first in range(0, self.keys, PART):
            users = np.arange(first, min(first + PART, self.keys))
            rows = users % 50 + 1
            sums = {f"sum_{name}": random.integers(0, 1 << 60, len(users)) for name in self.summed()}
            yield pa.record_batch({"user_id": users, "__rows": rows, **sums})

    def summed(self):
        """Return the columns that are added up."""
        return ["amount", *(f"amount{i}" for i in range(1, self.options.sums))]

    def graph(self, name, **changes):
        values = {
            "name": name, "root": str(self.top / "root"), "users": self.keys, "parallelism": 2, "groups": 1024,
            "keyed": BY_NUMBER, "seen": str(self.top / f"{name}.seen"), "interval": self.options.interval,
            "summed": self.summed(),
            "memory": self.options.memory, "backend": self.options.backend, "unaligned": self.options.unaligned,
        }  # fmt: skip
        path = self.top / "job.py"
        path.write_text(JOB.format(**{**values, **changes}))
        found = _Capture()
        with use_executor(found):
            execute_file(path)
        return found.graphs[-1]

    def submit(self, graph, uri, *, claim=True):
        options = SubmitOptions(from_uri=uri, claim=claim)
        return ClusterExecutor(url=self.cluster.rest_url, options=options).submit(graph)

    def state(self, *words):
        """Run `penstock state`, and return its result."""
        command = [*CLI, "state", *map(str, words), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def begin_change(self):
        """Begin a change of the job, and return the time."""
        self.changes.append(time.time())
        return self.changes[-1]

    def marks(self, name):
        path = self.top / f"{name}.seen"
        return sorted(map(float, path.read_text().split())) if path.exists() else []

    def wait_for_output(self, name, since):
        wait_until(lambda: any(at > since + AFTER_S for at in self.marks(name)), "output", seconds=LIMIT_S, step=0.2)


class Published:
    """The times at which a job's checkpoints were completed, seen every 10 ms; `find_newest` returns a number."""

    def __init__(self, find_newest):
        self._find_newest, self.times, self._newest = find_newest, [], -1
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()

    def _run(self):
        while not self._ended.wait(0.01):
            newest = self._find_newest()
            if newest != self._newest:
                self._newest = newest
                self.times.append(time.time())


def longest(times, since, until=float("inf")):
    """Return the longest time between two of these that ends after `since`, in seconds."""
    pairs = itertools.pairwise(sorted(times))
    return round(max((later - earlier for earlier, later in pairs if since < later <= until), default=0.0), 2)


def told(**line):
    """Print one line of JSON."""
    print(json.dumps(line), flush=True)


def in_place(*parallelisms):
    """Use `penstock rescale`, to each of these in turn."""

    def way(scene, job):
        for number in parallelisms:
            began = scene.begin_change()
            job.rescale(number)
            told(way=job.name, to=number, running_s=round(time.time() - began, 2))
            scene.wait_for_output(job.name, time.time())
        return job

    return way


def upgraded(**options):
    """Use `penstock upgrade` with options, to another number of key groups."""

    def way(scene, job):
        new = scene.graph(job.name, groups=4096)
        scene.begin_change()
        job.upgrade(new, checkpoints=0, rollback=False, **options)
        return job

    return way


def stopped(backend=None, **options):
    """Stop with a savepoint with options, and start again from it, with another state backend if given."""

    def way(scene, job):
        changes = {} if backend is None else {"backend": backend}
        new, began = scene.graph(job.name, **changes), scene.begin_change()
        uri = job.stop(timeout_ms=1000 * LIMIT_S, **options)
        job.wait()
        told(way=job.name, stop_s=round(time.time() - began, 1))
        return scene.submit(new, uri)

    return way


def rewritten(command, changes, *, prepared):
    """Cancel the job, rewrite its state, and start it from the savepoint; all of it, or what is left to do."""

    def way(scene, job):
        folder, name = scene.top / "root" / job.name, job.name
        target, files = scene.top / f"{name}-sp", scene.top / f"{name}-files"
        own = REKEY if command == "rekey" else []
        more = scene.spark
        for engine in (scene.spark, []) if prepared else ():  # the second time adds what is new since the first
            began = time.monotonic()
            done = scene.state("prepare", folder, files, *own, *engine)
            told(way=name, prepared=done, seconds=round(time.monotonic() - began, 1))
            more = ["--prepared", files]
        new = scene.graph(name, **changes)
        scene.begin_change()
        began = time.monotonic()
        job.cancel()
        job.wait()
        ended = time.monotonic()
        scene.state(command, folder, target, *(own or ["--key-groups", changes["groups"]]), *more)
        told(way=name, cancel_s=round(ended - began, 1), rewrite_s=round(time.monotonic() - ended, 1))
        return scene.submit(new, str(target))

    return way


WAYS = {
    "rescale": in_place(3),
    "rescale-and-back": in_place(4, 2),
    "upgrade-from-checkpoint": upgraded(from_checkpoint=True),
    "upgrade-with-savepoint": upgraded(native=False),
    "upgrade-with-native-savepoint": upgraded(native=True),
    "stop-with-savepoint": stopped(native=False),
    "stop-with-native-savepoint": stopped(native=True),
    "stop-with-native-savepoint-then-remote": stopped(native=True, backend="remote"),
    "repartition": rewritten("repartition", {"groups": 4096}, prepared=False),
    "repartition-prepared": rewritten("repartition", {"groups": 4096}, prepared=True),
    "rekey": rewritten("rekey", {"keyed": BY_TEXT}, prepared=False),
    "rekey-prepared": rewritten("rekey", {"keyed": BY_TEXT}, prepared=True),
}


def measure(scene, name):
    """Start a job, change it --times times, and print the longest times without output."""
    job = scene.submit(scene.graph(name), scene.began, claim=False)
    completed = lambda: job.client.summary(job.job_id).get("checkpoints-completed", 0)
    wait_until(lambda: completed() >= 3, "three checkpoints", seconds=LIMIT_S, step=0.2)
    scene.changes.clear()
    manifests = scene.top / "root" / name / "manifests"
    newest = lambda: max((int(path.stem) for path in manifests.glob("*.json")), default=-1)
    with Published(newest) as published:
        since = time.time()
        scene.wait_for_output(name, since + scene.options.steady)
        for _ in range(scene.options.times):
            job = WAYS[name](scene, job)
            scene.wait_for_output(name, time.time() + scene.options.steady)
    for began in scene.changes if scene.options.story else ():
        tell_around(job, began, published.times, scene.marks(name))
    began = scene.changes[0]
    marks = scene.marks(name)
    figures = {"gap_s": marks, "published_gap_s": published.times}
    before = {f"steady_{what}": longest(times, since, began) for what, times in figures.items()}
    spans = [*itertools.pairwise([*scene.changes, float("inf")])]
    each = {what: [longest(times, *span) for span in spans] for what, times in figures.items()}
    after = {what: statistics.median(gaps) for what, gaps in each.items()}
    done = wait_until(lambda: completed_since(job, began), "a checkpoint", seconds=LIMIT_S, step=0.2)
    after["checkpoint_s"] = max(one["end_to_end_duration"] for one in done) / 1000
    after["in_flight_bytes"] = max(one["persisted_data"] for one in done)
    told(way=name, **after, **before, each=each, load=round(os.getloadavg()[0], 1))
    job.cancel()
    job.wait()


def tell_around(job, since, published, marks):
    """Print the story of a change, its checkpoints, and the longest times without one and without a row."""
    told(change=time.strftime("%H:%M:%S", time.gmtime(since)))
    tell(job.client, job.job_id, since)
    for one in sorted(job.client.checkpoints(job.job_id)["history"], key=lambda one: one["id"]):
        begun = one["trigger_timestamp"] / 1000 - since
        if begun > -2:
            print(f"  {begun:7.3f} checkpoint {one['id']} {one['status']} {one['end_to_end_duration']} ms", flush=True)
    for what, times in (("rows", marks), ("checkpoints", published)):
        gaps = sorted(((b - a, b - since) for a, b in itertools.pairwise(times) if b > since), reverse=True)[:4]
        print(f"  no {what}:", ", ".join(f"{gap:.2f} until {end:.2f}" for gap, end in gaps), flush=True)


def completed_since(job, since):
    """Return the completed checkpoints of a job that were triggered after a time."""
    history = job.client.checkpoints(job.job_id)["history"]
    return [one for one in history if one["trigger_timestamp"] > 1000 * since and one["status"] == "COMPLETED"]


def add_scene_options(parser):
    """Add the options of a `Scene`."""
    parser.add_argument("--keys", type=int, default=21_000_000)
    parser.add_argument("--sums", type=int, default=1, help="numbers of 60 bits in each key's state")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--begin", help="a savepoint of the same keys and sums that exists")
    parser.add_argument("--backend", default="hashmap")
    parser.add_argument("--memory", default="1GB")
    parser.add_argument("--interval", default="2s")
    parser.add_argument("--unaligned", action="store_true", help="let barriers overtake rows")


def main():
    """Print the state's size, and lines of JSON for each way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_scene_options(parser)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--spark", action="store_true", help="rewrite whole states on Spark")
    parser.add_argument("--only", nargs="*", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--steady", type=float, default=5.0, help="seconds of output before and after the change")
    parser.add_argument("--story", action="store_true", help="print what the JobManager did in each")
    parser.add_argument("--times", type=int, default=1, help="how often; medians of all changes are printed")
    options = parser.parse_args()
    spark = ("--engine", "spark", "--master", f"local[{options.cores}]") if options.spark else ()
    with tempfile.TemporaryDirectory(dir=options.folder) as top:
        scene = Scene(top, options, slots=4, spark=spark)
        try:
            told(state_mb=state_bytes(open_snapshot(scene.began)) >> 20, spark=options.spark)
            for name in options.only:
                measure(scene, name)
        finally:
            scene.cluster.close()


if __name__ == "__main__":
    main()
