"""The order and batch size in which the sorted rows of one part reach its operators.

Called by `task`.

The output of an operator must not depend on the number of rows in a batch. Rows come in the canonical order: rows of a
union are one batch, rows of a function with two inputs come run by run. Joins give the same result in any order, so
their rows come input by input. If a function has timers, batches are split so that each key's timers fire between its
rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from penstock.backfill.wire import EDGE, NO_EDGE, TIME, rows_of, runs
from penstock.core.schema import schema_from_text
from penstock.graph.job_graph import KeyGroup
from penstock.kernels.keys.hashing import hash_columns

if TYPE_CHECKING:
    from penstock.backfill.stages import Stage

#: Kinds whose result does not depend on the order of the inputs within a batch.
_JOINS = frozenset({"interval_join", "window_join", "window_rows_join", "temporal_join"})
#: Kinds with distinct inputs; all others take several inputs as one stream, a union.
_TWO_INPUTS = frozenset({"co_process", *_JOINS})
#: Most rows at a time if timers have to fire between rows.
_TIMED_ROWS = 1024


class Fed(Protocol):
    """The part that receives the rows."""

    @property
    def next_timer(self) -> int | None:
        """Return a time before which no timer in the backfill is due; None: there is no timer."""

    @property
    def may_fire(self) -> bool:
        """Return whether rows may set timers that fire in the backfill."""

    def feed(self, rows: pa.RecordBatch, edge: int) -> None:
        """Take rows of one input."""

    def advance(self, watermark: int) -> None:
        """Advance event time."""


class Feeding:
    """Feeds the parts of one stage."""

    def __init__(self, stage: Stage) -> None:
        """Derive the order from the stage's first operator."""
        self._schemas = [schema_from_text(edge.schema) for edge in stage.inputs]
        self._partitioners = [edge.partitioner for edge in stage.inputs]
        kind = stage.vertex.operators[0].kind
        self._any_order = kind in _JOINS
        self._one_stream = kind not in _TWO_INPUTS and all(s.equals(self._schemas[0]) for s in self._schemas)

    def feed(self, part: Fed, batch: pa.RecordBatch) -> None:
        """Feed rows of one part, sorted by `wire.ORDER`, then advance event time to just before the last row's."""
        edges = batch.column(EDGE).to_numpy()
        batch = batch.slice(int(np.count_nonzero(edges == NO_EDGE)))  # these rows have the smallest time
        if not batch.num_rows:
            return
        times = batch.column(TIME).to_numpy()
        start = 0
        before = self._before(batch, times) if part.may_fire else None
        while start < len(times):
            part.advance(int(times[start]) - 1)
            stop = len(times)
            if before is not None and part.may_fire:
                stop = _stop(times, before, start, part.next_timer)
            self._feed(part, batch.slice(start, stop - start))
            start = stop
        # more rows of this time may come
        part.advance(int(times[-1]) - 1)

    def _feed(self, part: Fed, batch: pa.RecordBatch) -> None:
        edges = batch.column(EDGE).to_numpy()
        if self._any_order:
            batch = batch.take(pa.array(np.argsort(edges, kind="stable")))
            edges = np.sort(edges, kind="stable")
        elif self._one_stream and edges.min() != edges.max():
            part.feed(self._united(batch, edges), int(edges[0]))
            return
        for edge, start, stop in runs(edges):
            part.feed(rows_of(batch.slice(start, stop - start), edge, self._schemas[edge]), edge)

    def _united(self, batch: pa.RecordBatch, edges: np.ndarray[Any, Any]) -> pa.RecordBatch:
        """Return the rows of all inputs as one batch in their order."""
        order = np.argsort(edges, kind="stable")
        sorted_rows = batch.take(pa.array(order))
        found = [rows_of(sorted_rows.slice(a, b - a), edge, self._schemas[edge]) for edge, a, b in runs(edges[order])]
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        table = pa.Table.from_batches([part.cast(self._schemas[0]) for part in found])
        return table.take(pa.array(back)).combine_chunks().to_batches()[0]

    def _before(self, batch: pa.RecordBatch, times: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return for each row the index of the previous row of its key, -1 if there is none or it has the same time."""
        edges = batch.column(EDGE).to_numpy()
        hashes = np.zeros(len(edges), np.uint64)
        for edge in np.unique(edges).tolist():
            partitioner = self._partitioners[edge]
            if isinstance(partitioner, KeyGroup):
                own = np.flatnonzero(edges == edge)
                rows = rows_of(batch.take(pa.array(own)), edge, self._schemas[edge])
                hashes[own] = hash_columns(rows, partitioner.columns)
        order = np.argsort(hashes, kind="stable")
        earlier, later = order[:-1], order[1:]
        counts = (hashes[earlier] == hashes[later]) & (times[earlier] < times[later])
        before = np.full(len(edges), -1, np.int64)
        before[later] = np.where(counts, earlier, -1)
        return before


def _stop(times: np.ndarray[Any, Any], before: np.ndarray[Any, Any], start: int, due: int | None) -> int:
    """Return the end of the rows from `start` on between which no timer of their keys can fire."""
    end = min(len(times), start + _TIMED_ROWS)
    ends = before[start + 1 : end] >= start
    if due is not None:
        ends |= times[start + 1 : end] > due
    found = np.flatnonzero(ends)
    return start + 1 + int(found[0]) if len(found) else end
