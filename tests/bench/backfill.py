"""Throughput of a backfill beside the live job over the same input: `python -m tests.bench.backfill [--rows N]`.

The windows job of the golden ones on generated orders; each way in a process of its own, measured from outside with its
whole tree. Elapsed times hold the start of Python, of the JVM and of the cluster; run two sizes to tell them apart.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.spark.golden import JOB

from penstock_lab.bench.measuring.tree_meter import TreeMeter, become_reaper

LIMIT_S = 3_600
CLI = [sys.executable, "-m", "penstock.cli.main"]


def ways(cores, folder):
    """Each way's name and command."""
    for count in cores:
        live = [*CLI, "run", str(JOB), "--parallelism", str(count), "--json"]
        spark = [*CLI, "backfill", str(JOB), "--to", f"{folder}/spark-{count}", "--master", f"local[{count}]", "--json"]
        yield f"live, parallelism {count}", live
        yield f"Spark, local[{count}]", [*spark, "--parts", str(2 * count)]
    yield "one process", [*CLI, "backfill", str(JOB), "--to", f"{folder}/here", "--parts", "2", "--json"]


def measured(command, environment, folder):
    """Run a command; return its seconds and those of processor time of its whole tree."""
    began = time.monotonic()
    process = subprocess.Popen(command, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True)
    meter = TreeMeter(process.pid)
    meter.start()
    try:
        out, _ = process.communicate(timeout=LIMIT_S)
    finally:
        meter.stop()
    assert process.returncode == 0, out
    return time.monotonic() - began, meter.total


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    become_reaper()
    with tempfile.TemporaryDirectory() as top:
        for number, (name, command) in enumerate(ways(options.cores, top)):
            folder = Path(top, f"run-{number}")
            folder.mkdir()
            golden = {"GOLDEN_KIND": "windows", "GOLDEN_ROWS": str(options.rows), "GOLDEN_FOLDER": str(folder)}
            seconds, cpu = measured(command, {**os.environ, **golden, "GOLDEN_RATE": "100000"}, folder)
            print(
                json.dumps(
                    {
                        "way": name,
                        "rows": options.rows,
                        "seconds": round(seconds, 1),
                        "cpu_seconds": round(cpu, 1),
                        "rows_a_second": round(options.rows / seconds),
                        "rows_a_cpu_second": round(options.rows / cpu) if cpu else None,
                    }
                ),
                flush=True,
            )


if __name__ == "__main__":
    main()
