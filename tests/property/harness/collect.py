"""Record the output of an operator, and compare it with the expected output."""

import math
from collections import Counter

import pyarrow as pa


class Collector:
    """Records all that an operator emits."""

    def __init__(self):
        #: Late rows are (tag, row).
        self.rows, self.watermarks, self.late, self.late_schema = [], [], [], None

    def batch(self, batch):
        assert batch.num_rows
        batch.data.validate(full=True)
        self.rows += batch.data.to_pylist()

    def side(self, tag, batch):
        assert batch.num_rows
        self.late += [(tag, row) for row in batch.data.to_pylist()]
        self.late_schema = batch.data.schema

    def watermark(self, watermark):
        self.watermarks.append(watermark.timestamp)

    def status(self, status):
        self.watermarks.append("idle" if status.idle else "active")


def counted(rows):
    """Return rows in no order."""
    return Counter(repr(sorted(row.items())) for row in rows)


def same_rows(found, expected):
    """Rows are equal, floats as far as the order of additions allows."""
    for got, wanted in zip(found, expected, strict=True):
        assert got.keys() == wanted.keys()
        assert all(_close(got[c], wanted[c]) for c in got), (got, wanted)


def _close(left, right):
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-9)
    return left == right


def micros(moment):
    """Return a point in time as microseconds."""
    return int(pa.scalar(moment, pa.timestamp("us", tz="UTC")).value)
