"""The right answer of the backfill's bench: plain Spark's rows whose window the watermark has closed.

Called by `backfill`. The event time at the end comes from the input: a watermark that is too low fails the check.
"""

import polars as pl

from penstock.connector.staging import decode_chunk
from penstock.snapshots.access.opening import open_snapshot
from penstock_connectors.datagen.source import orders as generated

#: Rows of a split among which the largest event time is; more than the disorder spans.
_LAST_ROWS = 1_000_000
#: The bound of `backfill_job`'s watermarks in microseconds.
_BOUND_US = 500_000


def last_watermark(pattern, counts):
    """Return the watermark after `counts` rows of each split: that of the slowest one."""
    latest = []
    for split, count in enumerate(counts):
        low = max(0, count - _LAST_ROWS)
        times = generated(pattern, split, low, count - low).column("ts").to_numpy()
        latest.append(int(times.max().astype("datetime64[us]").astype("int64")))
    return min(latest) - _BOUND_US - 1


def staged_rows(uri):
    """Return the rows that a savepoint's sinks have staged."""
    snapshot = open_snapshot(uri)
    refs = [ref for output in snapshot.manifest.pending for ref in output.files]
    return pl.concat(pl.from_arrow(decode_chunk(snapshot.read(ref))) for ref in refs)


def compare(staged, every, columns, end, watermark):
    """Check the staged rows against all rows; return how many are staged, and how many wait for event time.

    `end` is the end of a row's window in microseconds, an expression; None: a row waits for nothing.
    """
    staged, every = (_counted(frame, columns) for frame in (staged, every))
    right = every if end is None else every.filter(end - 1 <= watermark)
    assert right.height > 0, "the input closes no window: take more rows"
    wrong, missing = (_without(*pair) for pair in ((staged, right), (right, staged)))
    assert wrong.is_empty(), f"{wrong.height} rows are not plain Spark's, or open: {wrong.row(0, named=True)}"
    assert missing.is_empty(), f"{missing.height} complete rows are missing: {missing.row(0, named=True)}"
    return {"rows": staged.height, "open": every.height - right.height}


def _without(rows, others):
    return rows.join(others, on=rows.columns, how="anti")


def _counted(frame, columns):
    """Return the distinct rows with their number, times as microseconds."""
    times = [name for name in columns if frame.schema[name].is_temporal()]
    return frame.with_columns(pl.col(name).dt.timestamp("us") for name in times).group_by(columns).len()
