"""Rows of a state that a condition chooses, by Spark's filter after reading and by the options of the data source.

    python -m tests.bench.read_state --rows 2000000

Each way counts the same rows. Bytes are those that the tasks read from the store, run without Spark. Seconds are the
median of three queries of one session, `local[2]`. One line of JSON for each way; `share` is that of the first.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession
from tests.bench.rewrite_state import write_state

from penstock.snapshots.on_spark.spark_entry import PenstockDataSource

KEY = "user_id = 1000003"
#: Way, condition, options: without a condition of Spark the options choose the rows.
WAYS = (
    ("one key: df.where", KEY, {}),
    ("one key: option where", "", {"where": KEY}),
    ("every row: all columns", "", {}),
    ("every row: option columns", "", {"columns": "user_id"}),
)


def bytes_read(state, options):
    """Return the bytes that the tasks of a frame read, and the number of tasks."""
    source = PenstockDataSource({"path": str(state), "uid": "totals", **options})
    schema = source.schema()
    reader = source.reader(schema)
    before = counter()
    parts = reader.partitions()
    for part in parts:
        for _ in reader.read(part):
            pass
    return counter() - before, len(parts)


def counter():
    """Return the bytes that this process has read by system calls."""
    return int(Path("/proc/self/io").read_text(encoding="ascii").split()[1])


def seconds(session, state, condition, options):
    """Return the number of rows and the median duration of three queries."""
    found, taken = set(), []
    for _ in range(3):
        start = time.perf_counter()
        frame = session.read.format("penstock").options(uid="totals", **options).load(str(state))
        found.add((frame.where(condition) if condition else frame).count())
        taken.append(time.perf_counter() - start)
    (rows,) = found
    return rows, statistics.median(taken)


def main():
    """Print one line of JSON for each way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--files", type=int, default=4)
    options = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.driver.bindAddress", "127.0.0.1")
    with tempfile.TemporaryDirectory() as top:
        size = write_state(Path(top), options.rows, options.files)
        session = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        session.range(1).count()
        first = {}
        for way, condition, given in WAYS:
            read, tasks = bytes_read(top, given)
            rows, took = seconds(session, top, condition, given)
            about = first.setdefault(way.split(":")[0], (rows, read, took))
            assert rows == about[0], f"{way}: {rows} rows in place of {about[0]}"
            line = {"way": way, "state_mb": round(size / 1e6, 1), "rows": rows, "read_mb": round(read / 1e6, 2)}
            line |= {"read_share": round(read / about[1], 3), "tasks": tasks, "seconds": round(took, 2)}
            print(json.dumps(line | {"share": round(took / about[2], 2)}), flush=True)
        session.stop()


if __name__ == "__main__":
    main()
