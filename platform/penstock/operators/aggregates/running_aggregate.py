"""Running aggregates per key (kind `running_aggregate`): each row is emitted with its key's aggregates so far.

Rows keep their order and their event time; none waits for a watermark, and emitted results are not retracted. State is
one cell per key, in a pane table with a single pane that never closes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.core.elements import Batch
from penstock.core.errors import GraphError
from penstock.kernels.keys.hashing import hash_key_columns
from penstock.kernels.keys.key_columns import key_columns
from penstock.operators.aggregates.aggregates import AggregatePlan
from penstock.operators.aggregates.running_schema import RunningConfig, parse_running, running_schema
from penstock.operators.operator import Operator, OperatorSnapshot
from penstock.operators.rows.columns import ts_of
from penstock.state.log.ttl import Ttl, TtlClock

if TYPE_CHECKING:
    from penstock.core.elements import Barrier
    from penstock.core.permits import CommitPermit
    from penstock.operators.operator import Collector, OperatorContext
    from penstock.state.keyed import KeyedStateStore
    from penstock.state.panes.running_table import RunningTable

_STATE = "running"


class RunningAggregateOperator(Operator):
    """Aggregates by key and emits a result for each row."""

    _config: RunningConfig
    _plan: AggregatePlan
    _schema: pa.Schema
    _store: KeyedStateStore
    _table: RunningTable

    def open(self, context: OperatorContext) -> None:
        """Declare (and so restore) the state."""
        if context.keyed_state is None:
            raise GraphError(f"{context.spec.uid}: a running aggregate needs keyed state", hint="key the stream first")
        self._config = parse_running(context.spec.config)
        self._schema = running_schema(context.spec.config, context.input_schemas[0])
        ttl = None if self._config.ttl is None else Ttl(TtlClock(context.clock), **self._config.ttl)
        expires = ttl is not None
        self._plan = AggregatePlan(self._config, context.input_schemas[0], single_pane=True, expires=expires)
        self._store = context.keyed_state
        self._table = self._store.running_table(_STATE, self._plan.spec, ttl)
        self._plan.heap = self._table.heap

    def process_batch(self, batch: Batch, input_index: int, out: Collector) -> None:  # noqa: ARG002 - one input
        """Add the rows; emit each with the aggregates of its key after it."""
        for part in self._table.pieces(batch.data):
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

    def notify_complete(self, permit: CommitPermit) -> None:
        """Let the segments of the checkpoint be compacted."""
        self._store.completed(permit.checkpoint_id)


def _plain(array: pa.Array) -> pa.Array:
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
