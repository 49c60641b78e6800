"""Operators with one cell per key and no windows: running aggregates and deduplication.

Kinds `running_aggregate` and `deduplicate`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.core.elements import MIN_TIMESTAMP, TS_COLUMN, Batch
from penstock.core.errors import GraphError
from penstock.kernels.keys.hashing import hash_key_columns
from penstock.kernels.keys.key_columns import fixed_column, key_columns
from penstock.operators.aggregates.aggregate_plan import AggregatePlan
from penstock.operators.aggregates.aggregate_schema import (
    DeduplicateConfig,
    RunningConfig,
    key_schema,
    parse_deduplicate,
    parse_running,
    running_schema,
    validate_deduplicate,
)
from penstock.operators.operator import Capabilities, Operator, OperatorSnapshot
from penstock.operators.rows.columns import ts_of
from penstock.state.cells.accumulators import AccumulatorSpec, PaneTableSpec
from penstock.state.log.ttl import Ttl

if TYPE_CHECKING:
    from penstock.core.elements import Barrier
    from penstock.kernels.compiler.compile import I64
    from penstock.operators.operator import Collector, OperatorContext
    from penstock.state.store import KeyedState
    from penstock.state.tables.running_table import RunningTable

_RUNNING_STATE = "running"


class RunningAggregateOperator(Operator):
    """Aggregates by key and emits a result for each row."""

    _config: RunningConfig
    _plan: AggregatePlan
    _schema: pa.Schema
    _store: KeyedState
    _table: RunningTable

    def open(self, context: OperatorContext) -> Capabilities:
        """Declare (and so restore) the state."""
        if context.keyed_state is None:
            raise GraphError(f"{context.spec.uid}: a running aggregate needs keyed state", hint="key the stream first")
        self._config = parse_running(context.spec.config)
        self._schema = running_schema(context.spec.config, context.input_schemas[0])
        self._store = context.keyed_state
        ttl = None if self._config.ttl is None else Ttl(self._store.ttl_clock(context.clock), **self._config.ttl)
        expires = ttl is not None
        self._plan = AggregatePlan(self._config, context.input_schemas[0], single_pane=True, expires=expires)
        self._table = self._store.running_table(_RUNNING_STATE, self._plan.spec, ttl)
        self._plan.heap = self._table.heap
        return Capabilities(arriving=self._table.arriving)

    def process_batch(self, batch: Batch, input_index: int, out: Collector) -> None:  # noqa: ARG002 - one input
        """Add the rows; emit each with the aggregates of its key after it."""
        for part in self._table.batches(batch.data):
            self._process(part, out)

    def _process(self, data: pa.RecordBatch, out: Collector) -> None:
        keys = key_columns(data, self._config.key)
        words = self._table.run(keys, hash_key_columns(keys, data.num_rows), self._plan.inputs(data))
        columns = [_plain(data.column(name)) for name in self._config.key]
        columns += self._plan.outputs(words.T)
        times = ts_of(data)
        if times is not None:
            columns.append(times)
        out.batch(Batch(pa.RecordBatch.from_arrays(columns, schema=self._schema)))

    def snapshot(self, barrier: Barrier, out: Collector) -> OperatorSnapshot:  # noqa: ARG002 - nothing is emitted at a barrier
        """Freeze the state."""
        return OperatorSnapshot(keyed=self._store.freeze(barrier.checkpoint_id))


def _plain(array: pa.Array) -> pa.Array:
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


_KEPT_STATE = "kept"
_ORDER = "__order"


class DeduplicateOperator(Operator):
    """Emits the rows that become their key's kept row."""

    _config: DeduplicateConfig
    _by: str | None
    _store: KeyedState
    _table: RunningTable

    def open(self, context: OperatorContext) -> Capabilities:
        """Declare (and so restore) the state."""
        if context.keyed_state is None:
            raise GraphError(f"{context.spec.uid}: deduplicate needs keyed state", hint="key the stream first")
        schema = context.input_schemas[0]
        validate_deduplicate(context.spec.config, schema)
        self._config = parse_deduplicate(context.spec.config)
        self._by = self._config.by or (TS_COLUMN if TS_COLUMN in schema.names else None)
        order = AccumulatorSpec(_ORDER, "int64", "max" if self._config.keep == "last" else "min")
        self._store = context.keyed_state
        ttl = None if self._config.ttl is None else Ttl(self._store.ttl_clock(context.clock), **self._config.ttl)
        keys, expires = key_schema(self._config, schema), ttl is not None
        spec = PaneTableSpec(keys, (order,), single_pane=True, expires=expires)
        self._table = self._store.running_table(_KEPT_STATE, spec, ttl)
        return Capabilities(arriving=self._table.arriving)

    def process_batch(self, batch: Batch, input_index: int, out: Collector) -> None:  # noqa: ARG002 - one input
        """Emit the rows that replace the kept row of their key."""
        for part in self._table.batches(batch.data):
            self._process(part, out)

    def _process(self, data: pa.RecordBatch, out: Collector) -> None:
        keys = key_columns(data, self._config.key)
        hashes = hash_key_columns(keys, data.num_rows)
        kept = self._table.keep(keys, hashes, self._order(data), last=self._config.keep == "last")
        if kept.all():
            out.batch(Batch(data))
        elif kept.any():
            out.batch(Batch(data.filter(pa.array(kept.view(np.bool_)))))

    def snapshot(self, barrier: Barrier, out: Collector) -> OperatorSnapshot:  # noqa: ARG002 - nothing is emitted at a barrier
        """Freeze the state."""
        return OperatorSnapshot(keyed=self._store.freeze(barrier.checkpoint_id))

    def _order(self, data: pa.RecordBatch) -> I64:
        if self._by is None:
            return np.zeros(data.num_rows, np.int64)
        column = fixed_column(data.column(self._by))
        if not column.nullable:
            return column.values
        bits = np.unpackbits(column.bitmap, count=column.bit_offset + data.num_rows, bitorder="little")
        return np.where(bits[column.bit_offset :] == 1, column.values, MIN_TIMESTAMP)
