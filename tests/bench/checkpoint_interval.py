"""The cost of short checkpoint intervals: `python -m tests.bench.checkpoint_interval cost | small | changes`.

`cost`: a small job (windows of a second by user) with a checkpoint every 10 s and every 100 ms, in turn, each in a
separate process tree measured from outside. CPU seconds are without those of the same job over few rows (start-up).
With `--rate`, rows come at that rate instead of at full speed.

`small`: the same job at --rate rows a second (1,000), without checkpoints and with one every 100 ms, in turn. Printed
is the CPU time by process while the job runs, and the difference a checkpoint.

`changes`: running aggregates over a state of --keys keys, of which few or many change between two checkpoints. Printed
are bytes uploaded and durations of the checkpoints of each interval, and the bytes of the changes themselves: what a
log of them would upload.
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

import numpy as np
import polars as pl
from tests.bench.backfill import measured
from tests.cluster.stage import _Capture
from tests.support.waiting import wait_until

import penstock as ps
from penstock.api.environment import use_executor
from penstock.cli.start.run import execute_file
from penstock.client.executors import ClusterExecutor, SubmitOptions
from penstock.client.local_cluster import LocalCluster, LocalClusterConfig
from penstock.snapshots.access.opening import open_snapshot
from penstock.snapshots.rewrite.repartition import state_bytes
from penstock_lab.bench.measuring.tree_meter import TreeMeter, become_reaper

CLI = [sys.executable, "-m", "penstock.cli.main"]
LIMIT_S = 600
#: Rows of the run that only starts.
FEW = 2_000
SHORT, LONG, NEVER = "100ms", "10s", "1h"
#: Seconds from the start of the workers until their CPU time is taken.
WARM_S = 3.0
WINDOWS = """
import penstock as ps
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink

env = ps.Environment(parallelism=2, checkpoint_interval={interval!r}, checkpoint_root={root!r})
source = DatagenSource(rows={rows}, rows_per_second={rate}, splits=2, users=1000, event_rate=100_000)
strategy = ps.WatermarkStrategy.bounded_out_of_orderness("0s", timestamp="ts")
orders = env.from_source(source, watermarks=strategy, uid="orders").key_by("user_id").window(ps.Tumbling("1s"))
totals = orders.aggregate(n=ps.count(), total=ps.sum("amount")).uid("totals")
totals.sink_to(FileSink({out!r}, format="parquet"), uid="out")
env.execute("small")
"""
RUNNING = """
import polars as pl
import penstock as ps
from penstock_connectors.datagen import DatagenSource

env = ps.Environment(
    parallelism=2, checkpoint_interval={interval!r}, checkpoint_root={root!r}, managed_memory="2GB",
)
orders = env.from_source(DatagenSource(users={users}, rows_per_second={rate}), uid="orders")
totals = orders.key_by("user_id").aggregate(n=ps.count(), total=ps.sum("amount")).uid("totals")
totals.filter(pl.col("n") < 0).print("none")
env.execute({name!r})
"""
#: A changed key in a log: key and values, without compression.
CHANGE_BYTES = 8 + 2 * 8


def told(**line):
    """Print one line of JSON."""
    print(json.dumps(line | {"load": round(os.getloadavg()[0], 1)}), flush=True)


def run_windows(interval, rows, rate):
    """Run the small job in a separate process tree; return its seconds, CPU seconds and number of checkpoints."""
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder)
        values = {"interval": interval, "rows": rows, "rate": rate, "root": f"{folder}/root", "out": f"{folder}/out"}
        (top / "job.py").write_text(WINDOWS.format(**values))
        seconds, cpu = measured([*CLI, "run", "job.py", "--json"], dict(os.environ), folder)
        counted = int(pl.read_parquet(f"{folder}/out/**/*.parquet")["n"].sum())
        assert counted == rows, f"{counted} of {rows} rows were counted"
        newest = newest_entry(top)
    return seconds, cpu, newest


def cost(options):
    """Print each run, and the ratio of the medians."""
    _, start, _ = run_windows(LONG, FEW, None)
    used = {LONG: [], SHORT: []}
    for pair in range(options.pairs):
        for interval in (LONG, SHORT) if pair % 2 == 0 else (SHORT, LONG):
            seconds, cpu, checkpoints = run_windows(interval, options.rows, options.rate)
            used[interval].append(cpu - start)
            told(interval=interval, seconds=round(seconds, 1), cpu=round(cpu - start, 2), entries=checkpoints)
    low, high = statistics.median(used[LONG]), statistics.median(used[SHORT])
    medians = {"cpu_long": round(low, 2), "cpu_short": round(high, 2), "ratio": round(high / low, 3)}
    told(rows=options.rows, rate=options.rate, **medians)


def small(options):
    """Print the CPU time of each run by process, and the medians of the difference a checkpoint."""
    found = {}
    for pair in range(options.pairs):
        runs = {}
        for interval in (NEVER, SHORT) if pair % 2 == 0 else (SHORT, NEVER):
            used, checkpoints = run_small(interval, options.rate or 1_000, options.seconds)
            runs[interval] = used
            told(interval=interval, checkpoints=checkpoints, ms_a_s=used)
            if interval == SHORT:
                each_s = checkpoints / options.seconds
        for what, cpu in runs[SHORT].items():
            found.setdefault(what, []).append((cpu - runs[NEVER].get(what, 0.0)) / each_s)
    told(ms_a_checkpoint={what: round(statistics.median(figures), 1) for what, figures in found.items()})


def run_small(interval, rate, seconds):
    """Run the job for some seconds; return CPU ms a second by kind of process and in all, and its checkpoints."""
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder)
        values = {"interval": interval, "rows": None, "rate": rate, "root": f"{folder}/root", "out": f"{folder}/out"}
        (top / "job.py").write_text(WINDOWS.format(**values))
        job = subprocess.Popen([*CLI, "run", "job.py", "--json"], cwd=folder, stdout=subprocess.DEVNULL)
        meter = TreeMeter(job.pid)
        meter.start()
        try:
            wait_until(lambda: len(meter.by_process().get("ps-worker", ())) == 2, "two workers", seconds=LIMIT_S)
            time.sleep(WARM_S)
            before, first = cpu_of(meter), newest_entry(top)
            time.sleep(seconds)
            after, last = cpu_of(meter), newest_entry(top)
        finally:
            meter.stop()
            meter.kill()
            job.wait()
    used = {what: round((cpu - before.get(what, 0.0)) * 1000 / seconds, 1) for what, cpu in after.items()}
    return used | {"all": round(sum(used.values()), 1)}, last - first


def cpu_of(meter):
    """Return the CPU seconds so far by kind of process."""
    return {what: sum(seconds) for what, seconds in meter.by_process().items()}


def newest_entry(top):
    """Return the number of the newest entry of the job's log."""
    return max((int(path.stem) for path in top.glob("root/small/manifests/*.json")), default=0)


def changes(options):
    """Print the checkpoints of each rate of changes and each interval."""
    users = np.arange(options.keys)
    amounts = np.random.default_rng(1).integers(0, 1 << 40, options.keys)
    rows = pl.DataFrame({"user_id": users, "__rows": users % 50 + 1, "sum_amount": amounts})
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder)
        config = LocalClusterConfig(taskmanagers=1, slots_per_taskmanager=2, directory=top / "cluster")
        with LocalCluster(config) as cluster:
            values = {"interval": "1s", "root": f"{folder}/root", "users": options.keys, "rate": 1000}
            began = ps.snapshots.write(
                f"{folder}/begin", {("totals", "running"): rows}, job=graph_of(top, RUNNING, **values, name="begin")
            )
            told(state_mb=state_bytes(open_snapshot(began)) >> 20, keys=options.keys)
            for number, (rate, interval) in enumerate((r, i) for r in options.rates for i in ("100ms", "1s")):
                name = f"changes-{number}"
                graph = graph_of(top, RUNNING, **values | {"rate": rate, "interval": interval}, name=name)
                start = SubmitOptions(from_uri=began, claim=False)
                job = ClusterExecutor(url=cluster.rest_url, options=start).submit(graph)
                told(rate=rate, interval=interval, **checkpoints_of(job, rate, interval, options.seconds))
                job.cancel()
                job.wait()


def checkpoints_of(job, rate, interval, seconds):
    """Let the job run; return figures of its checkpoints after the first ones."""
    completed = lambda: job.client.checkpoints(job.job_id)["counts"]["completed"]
    wait_until(lambda: completed() >= 3, "three checkpoints", seconds=LIMIT_S, step=0.1)
    before, began = completed(), time.time()
    time.sleep(seconds)
    took = time.time() - began
    found = job.client.checkpoints(job.job_id)
    done = [entry for entry in found["history"] if entry["status"] == "COMPLETED" and entry["id"] > before]
    durations, sizes = ([entry[name] for entry in done] for name in ("end_to_end_duration", "checkpointed_size"))
    uploaded = found["counts"]["completed"] - before
    each = statistics.median(sizes)
    return {
        "checkpoints_a_s": round(uploaded / took, 1),
        "duration_p50_ms": statistics.median(durations),
        "duration_max_ms": max(durations),
        "bytes_p50": each,
        "mb_a_s": round(each * uploaded / took / 1e6, 3),
        "changes_mb_a_s": round(rate * CHANGE_BYTES / 1e6, 3),
    }


def graph_of(top, text, **values):
    """Return the graph of a job file."""
    path = top / "job.py"
    path.write_text(text.format(**values))
    found = _Capture()
    with use_executor(found):
        execute_file(path)
    return found.graphs[-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("cost", "small", "changes"))
    parser.add_argument("--rows", type=int, default=30_000_000)
    parser.add_argument("--rate", type=int, help="rows a second; without: full speed")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--keys", type=int, default=6_000_000)
    parser.add_argument("--rates", type=int, nargs="*", default=[1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    if options.what == "changes":
        changes(options)
        return
    become_reaper()
    {"cost": cost, "small": small}[options.what](options)


if __name__ == "__main__":
    main()
