"""A backfill beside the live job and beside plain Spark, over the same rows: `python -m tests.bench.backfill KIND`.

Kinds: windows of a second (40 users), sessions, an interval join and a process function (10,000 users), over orders
from Parquet files, from Kafka or generated. Each way runs in a separate process, measured from outside with its whole
tree, without the broker. Elapsed times hold the start of Python, of the JVM and of the cluster: run two sizes to tell
them apart. The rows of the savepoint have to be those of plain Spark whose windows are complete; those of generated
input are not compared. With `--executors`, only Spark runs, on executors with one core each.
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
from tests.bench.backfill_answer import compare, last_watermark, staged_rows
from tests.bench.backfill_kafka import connector_jars, fill_topic

from penstock.snapshots.on_spark.spark_context import on_this_machine
from penstock_connectors.datagen.source import OrderPattern
from penstock_connectors.datagen.source import orders as generated
from penstock_lab.bench.measuring.tree_meter import TreeMeter, become_reaper
from penstock_lab.servers import start_kafka

LIMIT_S = 3_600
CLI = [sys.executable, "-m", "penstock.cli.main"]
JOB = Path(__file__).with_name("backfill_job.py")
PLAIN_SPARK = Path(__file__).with_name("backfill_spark.py")
SPLITS, RATE, GROUP_ROWS = 3, 100_000, 1_000_000
#: Kind -> users, the columns of a result, and the end of its window in microseconds, which a join does not have.
KINDS = {
    "windows": (40, ("user_id", "window_start", "window_end", "n", "total"), pl.col("window_end")),
    "sessions": (10_000, ("user_id", "window_start", "window_end", "n", "total"), pl.col("window_end")),
    "join": (10_000, ("user_id", "ts", "ts_right"), None),
    "process": (10_000, ("user_id", "second", "rows"), (pl.col("second") + 1) * 1_000_000),
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


def patterns_of(kind):
    """Return the orders of each source, by its uid."""
    return {
        uid: OrderPattern(
            splits=SPLITS, users=KINDS[kind][0], max_amount=100, start_us=1_700_000_000_000_000, event_rate=RATE,
            disorder_ms=400, seed=seed,
        )
        for seed, uid in enumerate(("orders", "others") if kind == "join" else ("orders",))
    }  # fmt: skip


def counts_of(rows):
    """Return the number of rows of each split."""
    return [rows // SPLITS + (split < rows % SPLITS) for split in range(SPLITS)]


@contextlib.contextmanager
def written_input(options, folder):
    """Write the input; yield the words with which plain Spark finds it, and the job's variables."""
    if options.source == "generated":
        yield [], {}
        return
    patterns, counts = patterns_of(options.kind), counts_of(options.rows)
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


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", nargs="?", choices=KINDS, default="windows")
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--executors", type=int, nargs="+", help="numbers of executors, in place of --cores")
    parser.add_argument("--source", choices=("parquet", "kafka", "generated"), default="parquet")
    options = parser.parse_args()
    users, columns, end = KINDS[options.kind]
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
            every = pl.read_parquet(f"{top}/plain-{counts[0]}/*.parquet")
            watermark = last_watermark(patterns_of(options.kind)["orders"], counts_of(options.rows))
            for name in results:
                found = compare(staged_rows(f"{top}/{name}"), every, columns, end, watermark)
                print(json.dumps({"checked": name, **found}))


if __name__ == "__main__":
    main()
