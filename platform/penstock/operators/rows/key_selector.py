"""The key of rows as additional last columns: a function's result (kind `key_selector`), or one key for all rows.

`key_selector` implements `.key_by(function)`; `constant_key` precedes the one subtask of `.window_all(...)`. Both run
before rows are sent by key, so a key travels with its row and is computed once.
"""

# ruff: noqa: ARG002 - the protocol sets the parameters of hooks

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.core.elements import Batch
from penstock.core.schema import schema_from_text
from penstock.operators.operator import Operator
from penstock.operators.rows.columns import ColumnError, assemble, ts_of, without_ts
from penstock.operators.rows.garbage import collector_paused
from penstock.operators.rows.rows import RowEncoder
from penstock.operators.rows.user_functions import FunctionOperator, user_error

if TYPE_CHECKING:
    from penstock.operators.operator import Collector, OperatorContext


class KeySelectorOperator(FunctionOperator):
    """Calls a function for each row; the payload ends with its result type: None (a value), tuple, or a row type."""

    def _prepare(self, row_type: type | None, output_type: type | None) -> None:
        super()._prepare(row_type, output_type)
        given = without_ts(self._input_schema)
        self._keys = pa.schema([field for field in self._schema if field.name not in given.names])
        self._encoder = RowEncoder(self._keys, self._where)
        self._shape = output_type

    def process_batch(self, batch: Batch, input_index: int, out: Collector) -> None:
        """Emit the rows with their keys."""
        function, data = self._function, batch.data
        with collector_paused():
            try:
                keys = [function(row) for row in self._decoder.rows(data)]
            except Exception as error:
                raise user_error(self._where, error) from error
            made = self._columns(keys)
        rows = [data.column(name) for name in self._schema.names if name not in self._keys.names]
        out.batch(Batch(assemble([*rows, *made], self._schema, ts_of(data))))

    def _columns(self, keys: list[Any]) -> list[pa.Array]:
        if self._shape is None:
            return [self._encoder.array(self._keys.field(0), keys)]
        if self._shape is not tuple:
            return self._encoder.columns(keys)
        wrong = next((key for key in keys if not isinstance(key, tuple) or len(key) != len(self._keys)), None)
        if wrong is not None:
            msg = f"{self._where}: a key is {wrong!r}, and its type says {len(self._keys)} members"
            raise ColumnError(msg, hint="return a tuple of that many, or correct the annotation")
        return [
            self._encoder.array(field, column)
            for field, column in zip(self._keys, zip(*keys, strict=True), strict=True)
        ]


class ConstantKeyOperator(Operator):
    """Assigns the same key to all rows."""

    def open(self, context: OperatorContext) -> None:
        """Read the schema."""
        self._schema = without_ts(schema_from_text(context.spec.output_schema))

    def process_batch(self, batch: Batch, input_index: int, out: Collector) -> None:
        """Emit the rows with the key."""
        rows = [batch.data.column(name) for name in self._schema.names[:-1]]
        zeros = pa.array(np.zeros(batch.data.num_rows, np.int64))
        out.batch(Batch(assemble([*rows, zeros], self._schema, ts_of(batch.data))))
