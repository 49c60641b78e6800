"""A repartition and a change of keys on Spark, beside Spark's own copy of the same Parquet bytes.

    python -m tests.bench.rewrite_state --rows 12000000

One state of two subtasks lies in files of all hashes each. Each way runs in a separate process, measured from outside
with its whole tree, the start of Python and of the JVM included. All results are compared with the rows as they were
written, then removed. The disk holds the state twice, and what Spark shuffles.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import polars as pl
from tests.bench.backfill import CLI, measured
from tests.bench.recut import state_of

from penstock.checkpoint.local_store import LocalStore
from penstock.checkpoint.manifest_log import Manifest, encode_manifest
from penstock_lab.bench.measuring.tree_meter import become_reaper

PLAIN_SPARK = Path(__file__).with_name("rewrite_state_spark.py")
OLD_GROUPS, NEW_GROUPS = 128, 1024
KEY = "user=CAST(user_id AS VARCHAR)"
COLUMNS = ["user_id", "__namespace", "__rows", "sum_amount"]


def write_state(folder, rows, files):
    """Write a savepoint of one state; return its bytes."""
    store = LocalStore(str(folder))
    manifest = Manifest(
        kind="savepoint", sequence=1, job_id="0" * 32, job_name="job", run_id="r", generation=1, nonce="n",
        created_ms=0, checkpoint_id=1, key_groups=OLD_GROUPS, subtasks=state_of(store, rows, files),
        operators={"totals": (2, "v")},
    )  # fmt: skip
    store.put("manifest.json", encode_manifest(manifest))
    return sum(path.stat().st_size for path in folder.rglob("*.parquet"))


def ways(state, folder, cores):
    """Each way's name and command."""
    spark = ["--engine", "spark", "--master", f"local[{cores}]", "--json"]
    plain = [sys.executable, str(PLAIN_SPARK)]
    yield "copy by Spark", [*plain, "copy", cores, f"{state}/data", f"{folder}/copy"]
    groups = ["--key-groups", str(NEW_GROUPS)]
    yield "repartition", [*CLI, "state", "repartition", str(state), f"{folder}/repartition", *groups, *spark]
    yield "copy with new keys by Spark", [*plain, "rekey", cores, f"{state}/data", f"{folder}/plain-rekey"]
    yield "rekey", [*CLI, "state", "rekey", str(state), f"{folder}/rekey", "--uid", "totals", "--key", KEY, *spark]


def summary(frame):
    """Return what two equal tables have in common: rows, and a sum over the hashes of the rows."""
    names = frame.collect_schema().names()
    key = pl.col("user_id") if "user_id" in names else pl.col("user").cast(pl.Int64).alias("user_id")
    whole = pl.struct(COLUMNS).hash(1).cast(pl.UInt64).sum().alias("sum")
    return frame.select(key, *COLUMNS[1:]).select(pl.len().alias("rows"), whole).collect(engine="streaming").row(0)


def main():
    """Print one line of JSON for each way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=12_000_000)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    become_reaper()
    with tempfile.TemporaryDirectory(dir=options.folder) as top:
        state, results = Path(top, "state"), Path(top, "results")
        results.mkdir()
        size = write_state(state, options.rows, options.files)
        wanted = summary(pl.scan_parquet(f"{state}/data/*.parquet"))
        for name, command in ways(state, results, options.cores):
            if options.only and name not in options.only:
                continue
            seconds, cpu = measured(list(map(str, command)), dict(os.environ), results)
            target = Path(command[-1] if "Spark" in name else results / name)
            found = summary(pl.scan_parquet(f"{target}/**/*.parquet"))
            assert found == wanted, f"{name}: {found} in place of {wanted}"
            written = sum(path.stat().st_size for path in target.rglob("*.parquet"))
            line = {"way": name, "state_mb": size >> 20, "written_mb": written >> 20, "seconds": round(seconds, 1)}
            print(json.dumps(line | {"cpu_seconds": round(cpu, 1)}), flush=True)
            shutil.rmtree(target)


if __name__ == "__main__":
    main()
