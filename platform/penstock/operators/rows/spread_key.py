"""The salt of a spread key (kind `spread_key`): a column that divides the rows of hot keys over several subtasks.

Rows of a key with a large share of this subtask's rows get the numbers 0 to N - 1 in turn, all others 0. Shares are
those of 1024 groups of keys by hash, over the last tens of thousands of rows. Any number is right for any row, since
the second stage merges all numbers of a key; so nothing is saved, and a replay may choose other numbers.
"""

# ruff: noqa: ARG002 - the protocol sets the parameters of hooks

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.core.elements import Batch
from penstock.core.schema import schema_from_text
from penstock.core.views import holds_views, plain_schema
from penstock.kernels.keys.hashing import hash_columns
from penstock.operators.operator import NO_CAPABILITIES, Operator
from penstock.operators.rows.columns import assemble, ts_of, without_ts

if TYPE_CHECKING:
    from penstock.kernels.compiler.compile import I64, U8
    from penstock.operators.operator import Capabilities, Collector, OperatorContext

#: Groups of keys by hash.
_GROUPS = 1024
#: Rows to see before a key can be hot, and rows after which former ones count half.
_FEWEST, _HALVED = 64, 1 << 16


class HotKeySalts:
    """Chooses the numbers of rows."""

    def __init__(self, spread: int) -> None:
        """A key is hot whose rows are more than a fourth of those that one of `spread` equal parts would have."""
        self._spread = spread
        self._counts = np.zeros(_GROUPS, np.int64)
        self._total = self._next = 0

    def of(self, hashes: I64) -> U8:
        """Return the number of each row, given the hashes of the keys."""
        groups = hashes & (_GROUPS - 1)
        self._counts += np.bincount(groups, minlength=_GROUPS)
        self._total += len(hashes)
        salts = np.zeros(len(hashes), np.uint8)
        if self._total >= _FEWEST:
            hot = self._counts * (4 * self._spread) > self._total
            if hot.any():
                rows = np.flatnonzero(hot[groups])
                salts[rows] = (np.arange(self._next, self._next + len(rows)) % self._spread).astype(np.uint8)
                self._next = (self._next + len(rows)) % self._spread
        if self._total >= _HALVED:
            self._counts >>= 1
            self._total = int(self._counts.sum())
        return salts


class SpreadKeyOperator(Operator):
    """Adds the column of the salt to rows."""

    def open(self, context: OperatorContext) -> Capabilities:
        """Read the key and the number of parts."""
        config = context.spec.config
        self._key = tuple(config["key"])
        self._salts = HotKeySalts(int(config["spread"]))
        self._schema = without_ts(schema_from_text(context.spec.output_schema))
        return NO_CAPABILITIES

    def process_batch(self, batch: Batch, input_index: int, out: Collector) -> None:
        """Emit the rows with their salts."""
        data = batch.data
        columns = [data.column(name) for name in self._schema.names[:-1]]
        keys = data.select(list(self._key))
        if holds_views(pa.struct(list(keys.schema))):
            keys = keys.cast(plain_schema(keys.schema))
        salts = pa.array(self._salts.of(hash_columns(keys, self._key)))
        out.batch(Batch(assemble([*columns, salts], self._schema, ts_of(data))))
