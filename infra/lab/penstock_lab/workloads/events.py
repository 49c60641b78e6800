"""Batches of events: runs the compiled generator and wraps its output as Arrow columns without a copy."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock_lab.workloads.kernels import TEXT_BYTES, generate, spell

_TIME = pa.timestamp("us", tz="UTC")


#: Number of evenly drawn values from which a skewed key is looked up.
_QUANTILES = 1 << 16


def ranks(keys: int) -> np.ndarray:
    """Return the key of each quantile if key k has a weight of 1 / (k + 1) ** 1.5."""
    rank = np.arange(1, keys + 1, dtype=np.int64)
    weights = (1 << 40) // (rank * np.sqrt(rank.astype(np.float64))).astype(np.int64)
    ends = np.cumsum(weights)
    middles = (2 * np.arange(_QUANTILES, dtype=np.int64) + 1) * (ends[-1] // (2 * _QUANTILES))
    found: np.ndarray = np.searchsorted(ends, middles, side="right").astype(np.int64)
    return found


class EventMaker:
    """Makes the rows of the splits of one source."""

    def __init__(self, keys: int, splits: int, *, text: bool, nullable: bool, skewed: bool = False) -> None:
        """Prepare.

        `text` spells keys as strings; `nullable` makes key 0 and every tenth amount null; `skewed`: see `ranks`.
        """
        self._ranks = ranks(keys) if skewed else None
        self._keys = _QUANTILES if skewed else keys
        self._splits = splits
        self._text = text
        self._nullable = nullable
        self._names = ["user_id", "amount", "ts"]
        self._schema: pa.Schema | None = None

    def make(self, split: int, position: int, count: int) -> pa.RecordBatch:
        """Return `count` rows of a split from `position` on."""
        user, amount, times = (np.empty(count, np.int64) for _ in range(3))
        generate(position * self._splits + split, self._splits, self._keys, user, amount, times)
        if self._ranks is not None:
            user = self._ranks[user]
        no_user = user == 0 if self._nullable else None
        no_amount = amount % 10 == 0 if self._nullable else None
        columns = [
            self._spelled(user, no_user) if self._text else pa.array(user, mask=no_user),
            pa.array(amount, mask=no_amount),
            pa.array(times).view(_TIME),
        ]
        if self._schema is None:
            fields = zip(self._names, columns, strict=True)
            self._schema = pa.schema(
                [pa.field(name, column.type, nullable=self._nullable and name != "ts") for name, column in fields]
            )
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _spelled(self, user: np.ndarray, no_user: np.ndarray | None) -> pa.Array:
        data = np.empty(TEXT_BYTES * len(user), np.uint8)
        spell(user, data)
        ends = np.arange(0, len(data) + 1, TEXT_BYTES, dtype=np.int32)
        valid = None
        if no_user is not None:
            valid = pa.py_buffer(np.packbits(~no_user, bitorder="little"))
        return pa.Array.from_buffers(pa.string(), len(user), [valid, pa.py_buffer(ends), pa.py_buffer(data)])
