"""`BatchSizer`: limits the rows that a chain with row functions receives at a time, by the measured time of a row.

A batch of a full buffer has tens of thousands of rows: as Python objects they exceed the CPU cache, and all other work
of the thread (mails, flushes, the other subtasks) waits until the last row is done. So such chains receive batches of
at most `MOST_ROWS`, and of fewer if a row takes long. Made by `task.drive.subtask`, only for such chains.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.core.elements import Batch
from penstock.graph.operator_kinds import properties_of

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.graph.job_graph import OperatorSpec
    from penstock.task.chain.chain import Chain

#: This many rows with their values fill about the second-level cache of a core.
MOST_ROWS = 4096
#: Target time of a part of a batch. With fewer rows than these the overhead may dominate: now and then more are tried.
TARGET_MS = 10.0
FIRST_ROWS = 64
#: Another size is tried when a part takes too long. A smaller part is kept if it takes at most 75 % of the time, a
#: larger one (by `_MORE`) if it takes less than 50 % of its time in proportion to rows.
_FEWER_HELP, _MORE_HELP, _MORE = 0.75, 0.5, 4
#: Parts until another size is tried again after a trial without effect.
_PARTS_UNTIL_TRIAL = 256
_KINDS_BEFORE = frozenset({"source", "project"})


class BatchSizer:
    """Feeds the head of a chain; at most one batch waits."""

    def __init__(self, chain: Chain, clock: Clock) -> None:
        """Make a sizer for a chain with row functions (`feeds_rows`)."""
        self._chain = chain
        self._clock = clock
        self._rest: Batch | None = None
        self._input_index = 0
        #: Rows of the next part.
        self.rows = FIRST_ROWS
        #: Rows and time of the last part, if the next one has another size for comparison.
        self._trial: tuple[int, float] | None = None
        #: Accepted time of a part until the next trial.
        self._settled_ms, self._parts_until_trial = 0.0, 0

    @property
    def waiting(self) -> bool:
        """Whether a part of the last batch is still to be fed."""
        return self._rest is not None

    @property
    def unfed(self) -> tuple[tuple[int, Batch], ...]:
        """The part of the last batch that is still to be fed, with its input."""
        return () if self._rest is None else ((self._input_index, self._rest),)

    def feed(self, batch: Batch, input_index: int) -> None:
        """Feed a batch, or its first part."""
        self._rest, self._input_index = batch, input_index
        self.feed_next()

    def feed_next(self) -> None:
        """Feed the next part of the batch."""
        batch = self._rest
        if batch is None:
            return
        rows = self.rows
        if batch.num_rows > rows:
            part, self._rest = Batch(batch.data.slice(0, rows)), Batch(batch.data.slice(rows))
        else:
            part, self._rest = batch, None
        begun = self._clock.monotonic_ms()
        self._chain.batch(part, self._input_index)
        self.measured(part.num_rows, self._clock.monotonic_ms() - begun)

    def measured(self, rows: int, measured: float) -> None:
        """Adapt the size to the time of a part, or of a poll of a source.

        The time may be a fixed cost per part (a slow sink, a poll): then fewer rows only increase the cost of each.
        """
        if not rows:
            return
        trial, self._trial = self._trial, None
        if trial is not None and rows != trial[0]:
            before, then = trial
            if measured > then * (_FEWER_HELP if rows < before else _MORE_HELP * rows / before):
                if rows < before <= FIRST_ROWS:
                    self._try(before, then, _MORE * before)
                else:
                    self._accept(before, then)
                return
            if before < rows < MOST_ROWS:
                self._try(rows, measured, _MORE * rows)
                return
        is_long = measured > (TARGET_MS if rows >= FIRST_ROWS else _FEWER_HELP * TARGET_MS)
        if is_long and self._parts_until_trial and measured <= 2 * self._settled_ms:
            self._parts_until_trial -= 1
        elif is_long:
            fewer = rows > 1 and measured > TARGET_MS
            self._try(rows, measured, round(rows * TARGET_MS / measured) if fewer else _MORE * rows)
        elif measured < _FEWER_HELP * TARGET_MS and rows >= self.rows:
            self.rows = MOST_ROWS if measured <= 0 else min(MOST_ROWS, round(rows * TARGET_MS / measured))

    def _try(self, rows: int, measured: float, other: int) -> None:
        self._trial = (rows, measured)
        self.rows = min(MOST_ROWS, max(1, other))

    def _accept(self, rows: int, measured: float) -> None:
        self.rows, self._settled_ms, self._parts_until_trial = rows, measured, _PARTS_UNTIL_TRIAL


def feeds_rows(operators: Sequence[OperatorSpec]) -> bool:
    """Return whether the chain takes its input row by row: in a row function, or for exact watermarks.

    A function of whole batches anywhere in the chain gets them whole, unless exact watermarks split them anyway.
    """
    kinds = [operator.kind for operator in operators]
    rowwise = (properties_of(operator.kind).by_row or _is_exact(operator) for operator in operators)
    first = next((index for index, is_rowwise in enumerate(rowwise) if is_rowwise), None)
    if first is None or not _KINDS_BEFORE.issuperset(kinds[:first]):
        return False
    return _is_exact(operators[first]) or "map_batches" not in kinds


def _is_exact(operator: OperatorSpec) -> bool:
    """Whether the operator emits a watermark after each row that raises it."""
    return bool((operator.config.get("watermarks") or {}).get("exact"))
