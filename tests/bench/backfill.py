"""A backfill beside the live job and beside plain Spark, over the same rows: `python -m tests.bench.backfill KIND`.

Kinds: windows of a second (40 users), sessions, an interval join and a process function (10,000 users), over orders
from Parquet files, from Kafka or generated. Each way runs in a separate process, measured from outside with its whole
tree, without the broker. Elapsed times hold the start of Python, of the JVM and of the cluster: run two sizes to tell
them apart. The rows of the backfill's savepoint are compared with those of plain Spark, except generated ones.
With `--executors`, only Spark runs, on executors with one core each.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from tests.bench.backfill_kafka import connector_jars, fill_topic

from penstock.connector.staging import decode_chunk
from penstock.snapshots.access.opening import open_snapshot
from penstock.snapshots.on_spark.spark_session import on_this_machine
from penstock_connectors.datagen.source import OrderPattern
from penstock_connectors.datagen.source import orders as generated
from penstock_lab.bench.measuring.tree_meter import TreeMeter, become_reaper
from penstock_lab.servers import start_kafka

LIMIT_S = 3_600
CLI = [sys.executable, "-m", "penstock.cli.main"]
JOB = Path(__file__).with_name("backfill_job.py")
PLAIN_SPARK = Path(__file__).with_name("backfill_spark.py")
SPLITS, RATE, GROUP_ROWS = 3, 100_000, 1_000_000
#: Kind -> users, and the columns of a result; the first two decide when it is complete.
KINDS = {
    "windows": (40, ("user_id", "window_start", "window_end", "n", "total")),
    "sessions": (10_000, ("user_id", "window_start", "window_end", "n", "total")),
    "join": (10_000, ("user_id", "ts", "ts_right")),
    "process": (10_000, ("user_id", "second", "rows")),
}


def ways(options, folder, given):
    """Each way's name, command, parallelism, and Spark's master if penstock does not start it.

    `given` is the input of plain Spark, or empty.
    """
    for count in options.executors or options.cores:
        master = f"local-cluster[{count},1,1024]" if options.executors else f"local[{count}]"
        if not options.executors:
            yield f"live, parallelism {count}", [*CLI, "run", str(JOB), "--json"], count, ""
        spark = [*CLI, "backfill", str(JOB), "--to", f"{folder}/spark-{count}", "--master", master, "--json"]
        yield f"Spark, {master}", [*spark, "--parts", str(2 * count)], count, ""
        if given:
            plain = [sys.executable, str(PLAIN_SPARK), options.kind, master, *given, f"{folder}/plain-{count}"]
            yield f"plain Spark, {master}", plain, count, master
    if not options.executors:
        yield "one process", [*CLI, "backfill", str(JOB), "--to", f"{folder}/here", "--parts", "2", "--json"], 1, ""


@contextlib.contextmanager
def written_input(options, folder):
    """Write the input; yield the words with which plain Spark finds it, and the job's variables."""
    if options.source == "generated":
        yield [], {}
        return
    users, _ = KINDS[options.kind]
    patterns = {
        uid: OrderPattern(
            splits=SPLITS, users=users, max_amount=100, start_us=1_700_000_000_000_000, event_rate=RATE,
            disorder_ms=400, seed=seed,
        )
        for seed, uid in enumerate(("orders", "others") if options.kind == "join" else ("orders",))
    }  # fmt: skip
    counts = [options.rows // SPLITS + (split < options.rows % SPLITS) for split in range(SPLITS)]
    if options.source == "parquet":
        for uid, pattern in patterns.items():
            write_parquet(folder / "input" / uid, pattern, counts)
        yield [f"{folder}/input", ""], {"BENCH_PARQUET": f"{folder}/input"}
        return
    jars = connector_jars()
    broker = start_kafka(folder / "kafka")
    try:
        for uid, pattern in patterns.items():
            fill_topic(broker.bootstrap, uid, pattern, counts)
        yield [broker.bootstrap, ",".join(jars)], {"BENCH_KAFKA": broker.bootstrap}
    finally:
        broker.remove()


def write_parquet(folder, pattern, counts):
    """Write the generated rows, one file for each split."""
    folder.mkdir(parents=True)
    for split, count in enumerate(counts):
        with pq.ParquetWriter(folder / f"{split}.parquet", generated(pattern, split, 0, 0).schema) as writer:
            for low in range(0, count, GROUP_ROWS):
                batch = generated(pattern, split, low, min(GROUP_ROWS, count - low))
                writer.write_table(pa.Table.from_batches([batch]), row_group_size=GROUP_ROWS)


def measured(command, environment, folder):
    """Run a command; return its seconds and those of processor time of its whole tree."""
    began = time.monotonic()
    process = subprocess.Popen(
        command, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    meter = TreeMeter(process.pid)
    meter.start()
    try:
        out, err = process.communicate(timeout=LIMIT_S)
    finally:
        meter.stop()
    assert process.returncode == 0, out + err
    return time.monotonic() - began, meter.total


def compare(uri, plain, columns):
    """Check the staged rows of a savepoint against all rows; only those of open windows may be missing."""
    snapshot = open_snapshot(uri)
    refs = [ref for output in snapshot.manifest.pending for ref in output.files]
    staged = pl.concat(pl.from_arrow(decode_chunk(snapshot.read(ref))) for ref in refs)
    staged, every = (_plain(frame, columns) for frame in (staged, pl.read_parquet(f"{plain}/*.parquet")))
    both = staged.join(every, on=[*columns, "len"])
    assert both.height == staged.height > 0, "a row differs from plain Spark's"
    left = every.join(staged, on=columns, how="anti")
    late = staged.filter(pl.col(columns[1]) > left[columns[1]].min() + 2_000_000) if left.height else left
    assert late.is_empty(), "a complete row is missing"
    return {"rows": staged.height, "open": left.height}


def _plain(frame, columns):
    """Return the distinct rows with their number, times as microseconds."""
    times = [name for name in columns if frame.schema[name].is_temporal()]
    return frame.with_columns(pl.col(name).dt.timestamp("us") for name in times).group_by(columns).len()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", nargs="?", choices=KINDS, default="windows")
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--executors", type=int, nargs="+", help="numbers of executors, in place of --cores")
    parser.add_argument("--source", choices=("parquet", "kafka", "generated"), default="parquet")
    options = parser.parse_args()
    users, columns = KINDS[options.kind]
    become_reaper()
    with (
        tempfile.TemporaryDirectory() as top,
        written_input(options, Path(top)) as (given, found_by),
    ):
        common = {"BENCH_KIND": options.kind, "BENCH_ROWS": str(options.rows), "BENCH_USERS": str(users), **found_by}
        for number, (name, command, cores, master) in enumerate(ways(options, top, given)):
            folder = Path(top, f"run-{number}")
            folder.mkdir()
            own = {"BENCH_FOLDER": str(folder), "BENCH_CORES": str(cores)}
            with on_this_machine(master, folder):
                seconds, cpu = measured(command, {**os.environ, **common, **own}, folder)
            found = {"way": name, "kind": options.kind, "source": options.source, "rows": options.rows}
            found |= {"seconds": round(seconds, 1), "cpu_seconds": round(cpu, 1)}
            print(json.dumps(found | {"rows_a_cpu_second": round(options.rows / cpu) if cpu else None}), flush=True)
        if given:
            counts = options.executors or options.cores
            results = [f"spark-{count}" for count in counts] + ([] if options.executors else ["here"])
            for name in results:
                print(json.dumps({"checked": name, **compare(f"{top}/{name}", f"{top}/plain-{counts[0]}", columns)}))


if __name__ == "__main__":
    main()
