"""Read a savepoint without penstock: its Parquet files with DuckDB and with Polars.

    python docs/examples/read_savepoint.py SAVEPOINT UID

SAVEPOINT is the folder that `penstock savepoint` or `penstock stop` printed, UID the window's uid.
"""

import sys

import duckdb
import polars as pl


def with_duckdb(savepoint: str, uid: str) -> duckdb.DuckDBPyRelation | None:
    """Return the open panes, newest first."""
    return duckdb.read_parquet(f"{savepoint}/{uid}/panes/*.parquet").query(
        "panes",
        """
        select make_timestamp(__namespace) as pane_start, * exclude (__key_hash, __namespace, __deleted, __seq)
        from panes
        order by pane_start desc
        """,
    )


def with_polars(savepoint: str, uid: str) -> pl.LazyFrame:
    """Return the open panes, newest first."""
    rows = pl.scan_parquet(f"{savepoint}/{uid}/panes/*.parquet")
    start = pl.from_epoch("__namespace", time_unit="us").alias("pane_start")
    columns = pl.exclude("__key_hash", "__namespace", "__deleted", "__seq")
    return rows.select(start, columns).sort("pane_start", descending=True)


if __name__ == "__main__":
    print(with_duckdb(*sys.argv[1:]))
    print(with_polars(*sys.argv[1:]).head().collect())
