"""How many bytes a batch is, cheaply: Arrow's exact answer costs ten microseconds, too much for every slice.

Used by `subpartition` for its bounds. Fixed-width schemas are exact; others use the average row seen so far,
corrected by every large batch and every encoded message.
"""

from __future__ import annotations

import pyarrow as pa

_LARGE_ROWS = 1024
_LEARN_EVERY = 64


class BatchSizer:
    """Estimates bytes of batches of one schema; belongs to one thread."""

    def __init__(self, schema: pa.Schema | None) -> None:
        """Work for `schema`, or for any when None."""
        self._fixed = _fixed_row_bytes(schema) if schema is not None else None
        self._average = 0.0
        self._calls = 0

    def size(self, batch: pa.RecordBatch) -> int:
        """Return the approximate bytes of `batch`, at least 1 for a batch with rows."""
        rows = batch.num_rows
        if self._fixed is not None:
            return max(1, int(rows * self._fixed))
        self._calls += 1
        if rows >= _LARGE_ROWS or self._calls % _LEARN_EVERY == 1:
            exact = int(batch.nbytes)
            self.learn(rows, exact)
            return max(1, exact)
        return max(1, int(rows * self._average))

    def learn(self, rows: int, size: int) -> None:
        """Take note of an exact size."""
        if rows:
            self._average = size / rows


def _fixed_row_bytes(schema: pa.Schema) -> float | None:
    bits = 0
    for field in schema:
        try:
            bits += field.type.bit_width + (1 if field.nullable else 0)
        except ValueError:
            return None
    return bits / 8
