"""Feeds ordered rows to a part of a stage so that batches do not change its result. Called by `task`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from penstock.backfill.exchange import COMBINED, OrderedRows, joined
from penstock.backfill.stages import STATELESS
from penstock.core.schema import schema_from_text
from penstock.graph.job_graph import KeyGroup, OperatorSpec
from penstock.kernels.keys.hashing import hash_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.backfill.stages import Stage
    from penstock.graph.job_graph import JobEdge

#: Kinds whose result does not depend on the order of the inputs within a batch.
_JOINS = frozenset({"interval_join", "window_join", "window_rows_join", "temporal_join"})
#: Kinds with distinct inputs; all others take several inputs as one stream, a union.
_TWO_INPUTS = frozenset({"co_process", *_JOINS})
#: Microseconds between the watermark and the next rows. A session that ends where they begin has to wait for them.
_BEHIND, _BEHIND_OF_SESSIONS = 1, 2
#: Most rows at a time if timers have to fire between rows.
_TIMED_ROWS = 1024
#: Batches taken as one if keys are processed one after the other: state is then loaded less often.
_BATCHES_BY_KEY = 4


class RowReceiver(Protocol):
    """The part that receives the rows."""

    @property
    def next_timer(self) -> int | None:
        """Return a time before which no timer in the backfill is due; None: there is no timer."""

    @property
    def may_fire(self) -> bool:
        """Return whether rows may set timers that fire in the backfill."""

    def feed(self, rows: pa.RecordBatch, edge: int) -> None:
        """Take rows of one input."""

    def feed_ordered(self, rows: pa.RecordBatch, edge: int, watermark: int) -> None:
        """Take rows of one input for a function with timers, and advance event time."""

    def advance(self, watermark: int) -> None:
        """Advance event time."""


def why_by_time(operators: Sequence[OperatorSpec], inputs: Sequence[JobEdge]) -> str | None:
    """Return why a process function gets its rows in order of time; None: it gets them key by key.

    Empty: the first operator is not one. Key by key, what follows has to take rows in any order of keys.
    """
    if operators[0].kind not in {"process", "co_process"}:
        return ""
    if operators[0].kind == "co_process" or len({edge.schema for edge in inputs}) > 1:
        return "it has two inputs"
    needs_order = next((operator for operator in operators[1:] if operator.kind not in STATELESS), None)
    return f"{needs_order.name} follows" if needs_order else None


class Feeding:
    """Feeds the parts of one stage."""

    def __init__(self, stage: Stage) -> None:
        """Derive the order from the stage's first operator."""
        self._schemas = [schema_from_text(edge.schema) for edge in stage.inputs]
        self._partitioners = [edge.partitioner for edge in stage.inputs]
        kind = stage.vertex.operators[0].kind
        self._any_order = kind in _JOINS
        self._behind = _BEHIND_OF_SESSIONS if any(map(_has_sessions, stage.vertex.operators)) else _BEHIND
        same = all(schema.equals(self._schemas[0]) for schema in self._schemas)
        self._one_stream = kind not in _TWO_INPUTS and same
        self._by_key = why_by_time(stage.vertex.operators, stage.inputs) is None

    def batch_rows(self, usual: int) -> int:
        """Return how many rows the stage takes at a time."""
        return usual * _BATCHES_BY_KEY if self._by_key else usual

    def feed(self, part: RowReceiver, rows: OrderedRows) -> None:
        """Feed rows in canonical order, with event time just before theirs, then just before the last row's.

        A function with timers may take them key by key: what it sees of its key is the same.
        """
        if self._by_key and part.may_fire:
            part.advance(int(rows.times[0]) - self._behind)
            part.feed_ordered(self._united(rows), int(rows.edges[0]), int(rows.times[-1]) - self._behind)
            return
        start = 0
        before = self._before(rows) if part.may_fire else None
        while start < len(rows):
            part.advance(int(rows.times[start]) - self._behind)
            stop = len(rows)
            if before is not None and part.may_fire:
                stop = _stop(rows.times, before, start, part.next_timer)
            self._feed(part, rows.slice(start, stop))
            start = stop
        # more rows of this time may come
        part.advance(int(rows.times[-1]) - self._behind)

    def _feed(self, part: RowReceiver, rows: OrderedRows) -> None:
        combined = rows.edges >= COMBINED
        if combined.any():  # no watermark is between them and the others, so that their order is free
            for edge, batch in rows.take(combined).runs():
                part.feed(batch, edge)
            rows = rows.take(~combined)
        if self._any_order:
            rows = rows.take(np.argsort(rows.edges, kind="stable"))
        elif self._one_stream and len(rows):
            part.feed(self._united(rows), int(rows.edges[0]))
            return
        for edge, batch in rows.runs():
            part.feed(batch, edge)

    def _united(self, rows: OrderedRows) -> pa.RecordBatch:
        """Return the rows of all inputs as one batch in their order."""
        if rows.edges.min() == rows.edges.max():
            return rows.of_edge(int(rows.edges[0]), 0, len(rows))
        order = np.argsort(rows.edges, kind="stable")
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return joined([batch.cast(self._schemas[0]) for _, batch in rows.take(order).runs()]).take(pa.array(back))

    def _before(self, rows: OrderedRows) -> np.ndarray[Any, Any]:
        """Return for each row the index of the previous row of its key, -1 if there is none or it has the same time."""
        hashes = np.zeros(len(rows), np.uint64)
        for edge in np.unique(rows.edges).tolist():
            partitioner = self._partitioners[edge % COMBINED]
            if isinstance(partitioner, KeyGroup):
                own = np.flatnonzero(rows.edges == edge)
                hashes[own] = hash_columns(rows.of_edge(edge, int(own[0]), len(own)), partitioner.columns)
        order = np.argsort(hashes, kind="stable")
        earlier, later = order[:-1], order[1:]
        counts = (hashes[earlier] == hashes[later]) & (rows.times[earlier] < rows.times[later])
        before = np.full(len(rows), -1, np.int64)
        before[later] = np.where(counts, earlier, -1)
        return before


def _has_sessions(operator: OperatorSpec) -> bool:
    return operator.kind == "session_aggregate" or operator.config.get("window", {}).get("kind") == "session"


def _stop(times: np.ndarray[Any, Any], before: np.ndarray[Any, Any], start: int, due: int | None) -> int:
    """Return the end of the rows from `start` on between which no timer of their keys can fire."""
    end = min(len(times), start + _TIMED_ROWS)
    ends = before[start + 1 : end] >= start
    if due is not None:
        ends |= times[start + 1 : end] > due
    found = np.flatnonzero(ends)
    return start + 1 + int(found[0]) if len(found) else end
