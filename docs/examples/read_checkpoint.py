"""Read a checkpoint without penstock: file list from the manifest, last row by order, tombstones applied, in DuckDB.

    python docs/examples/read_checkpoint.py CHECKPOINT_ROOT/JOB UID KEY_COLUMN...

Works on a local folder; for an S3 store copy the job's folder first, or read its objects with any S3 client.
"""

import base64
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

QUERY = """
with visible as (
    select * from rows r
    where not exists (
        select 1 from tombstones t
        where t.log = r.__log and t.position > r.__position
          and r.__key_hash between t.hash_low and t.hash_high
          and r.__namespace between t.namespace_low and t.namespace_high
    )
), ranked as (
    select *, row_number() over (partition by {keys}, __namespace order by __position desc, __seq desc) as __rank
    from visible
)
select * exclude (__log, __position, __rank) from ranked where __rank = 1 and not __deleted
"""


def newest_checkpoint(job: Path) -> dict[str, Any]:
    """Return the newest complete checkpoint's manifest of the present history."""
    newest: dict[str, Any] | None = None
    seal = 0
    for path in sorted((job / "manifests").glob("*.json")):
        manifest = json.loads(path.read_bytes())
        if manifest["generation"] < seal:
            continue  # written by a leader that had been replaced
        if manifest["kind"] == "seal":
            seal = manifest["generation"]
            if manifest.get("note") == "fresh":
                newest = None
        elif manifest["kind"] == "checkpoint":
            newest = manifest
    if newest is None:
        raise SystemExit(f"{job} holds no checkpoint")
    return newest


def part(job: Path, file: dict[str, Any], scratch: Path) -> Path:
    """Return a Parquet file of one part: it lies inline in the manifest, or at an offset of a packed object."""
    if file.get("inline") is not None:
        data = base64.b64decode(file["inline"])
    else:
        # after a start from a savepoint, its files are named by their whole URI
        place = Path(file["path"].removeprefix("file://")) if "://" in file["path"] else job / file["path"]
        with place.open("rb") as packed:
            packed.seek(file["offset"])
            data = packed.read(file["length"])
    path = scratch / f"{len(list(scratch.iterdir()))}.parquet"
    path.write_bytes(data)
    return path


def read_state(job: Path, uid: str, keys: list[str]) -> pa.Table:
    """Return the rows that the newest checkpoint of the window `uid` means."""
    tables, tombstones = [], []
    with tempfile.TemporaryDirectory() as folder:
        for log, state in enumerate(
            state
            for subtask in newest_checkpoint(job)["subtasks"]
            for state in subtask["keyed"]
            if (state["uid"], state["state"]) == (uid, "panes")
        ):
            tombstones += [{"log": log, **stone} for stone in state["tombstones"]]
            for segment in state["segments"]:
                low = max(segment["clip_low"], state["hash_low"])
                high = min(segment["clip_high"], state["hash_high"])
                own = [("__key_hash", ">=", low), ("__key_hash", "<=", high)]
                inside = pq.read_table(part(job, segment["file"], Path(folder)), filters=own)
                for name, value in (("__log", log), ("__position", segment["position"])):
                    inside = inside.append_column(name, pa.repeat(pa.scalar(value), inside.num_rows))
                tables.append(inside)
    names = ("log", "position", "hash_low", "hash_high", "namespace_low", "namespace_high")
    stones = pa.Table.from_pylist(tombstones, pa.schema([(name, pa.int64()) for name in names]))
    with duckdb.connect() as database:
        database.register("rows", pa.concat_tables(tables))
        database.register("tombstones", stones)
        return database.sql(QUERY.format(keys=", ".join(f'"{key}"' for key in keys))).to_arrow_table()


if __name__ == "__main__":
    print(duckdb.from_arrow(read_state(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])))
