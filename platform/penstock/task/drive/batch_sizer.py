"""`RowPieces`: limits the rows that a chain with row functions receives at a time, by the measured time of a row.

A batch of a full buffer has tens of thousands of rows: as Python objects they exceed the CPU cache, and all other work
of the thread (mails, flushes, the other subtasks) waits until the last row is done. So such chains receive batches of
at most `MOST_ROWS`, and of fewer if a row takes long. Kept by `task.drive.subtask`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.core.elements import Batch
from penstock.task.drive.poll_sizer import PollRows, columns_alone

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.graph.job_graph import OperatorSpec
    from penstock.task.chain.chain import Chain

#: This many rows with their values fill about the second-level cache of a core.
MOST_ROWS = 4096
#: Target time of a part of a batch; below this number of rows the overhead dominates.
TARGET_MS = 10.0
LEAST_ROWS = 64
#: A part above the target time is compared with a smaller one, which must take at most this share of its time, or
#: with a larger one, which must take less than this share of the time in proportion to rows.
_FEWER_HELP, _MORE_HELP, _MORE = 0.75, 0.5, 4
#: Parts until another size is tried again after a trial without effect.
_CONTENT = 256
_ROW_KINDS = frozenset(
    {
        "map",
        "flat_map",
        "filter_rows",
        "map_async",
        "plain_process",
        "process",
        "co_process",
        "broadcast_process",
        "window_rows",
        "window_rows_join",
        "key_selector",
    }
)
_BEFORE = frozenset({"source", "project"})


class RowPieces:
    """Feeds the head of a chain; at most one batch waits."""

    def __init__(self, chain: Chain, operators: Sequence[OperatorSpec], clock: Clock) -> None:
        """Make a sizer; chains without row functions receive whole batches."""
        self._chain = chain
        self._clock = clock
        kinds = [operator.kind for operator in operators]
        self._cuts = feeds_rows(kinds)
        #: Chooses the rows requested from a source; None: the source chooses.
        self._asks: RowPieces | PollRows | None = self if self._cuts else PollRows() if columns_alone(kinds) else None
        self._rest: Batch | None = None
        self._input_index = 0
        #: Rows of the next part.
        self.rows = LEAST_ROWS
        #: Rows and time of the last part, if the next one has another size for comparison.
        self._trial: tuple[int, float] | None = None
        #: Accepted time of a part until the next trial.
        self._settled_ms, self._content = 0.0, 0

    @property
    def waiting(self) -> bool:
        """Whether a part of the last batch is still to be fed."""
        return self._rest is not None

    def feed(self, batch: Batch, input_index: int) -> None:
        """Feed a batch, or its first part."""
        if self._cuts:
            self._rest, self._input_index = batch, input_index
            self.go_on()
        else:
            self._chain.batch(batch, input_index)

    def go_on(self) -> None:
        """Feed the next part of the batch."""
        batch = self._rest
        if batch is None:
            return
        rows = self.rows
        if batch.num_rows > rows:
            piece, self._rest = Batch(batch.data.slice(0, rows)), Batch(batch.data.slice(rows))
        else:
            piece, self._rest = batch, None
        begun = self._clock.monotonic_ms()
        self._chain.batch(piece, self._input_index)
        self.took(piece.num_rows, self._clock.monotonic_ms() - begun)

    def poll(self) -> bool:
        """Let the source at the head emit a batch; return whether it did."""
        asks = self._asks
        if asks is None:
            return self._chain.poll(backpressured=False)
        link = self._chain.links[0]
        source: Any = link.operator
        source.poll_rows = asks.rows
        before, begun = link.records_out, self._clock.monotonic_ms()
        gave = self._chain.poll(backpressured=False)
        asks.took(link.records_out - before, self._clock.monotonic_ms() - begun)
        return gave

    def took(self, rows: int, took: float) -> None:
        """Adapt the size to the time of a part.

        The time may be a fixed cost per part (a slow sink, a poll): then fewer rows only increase the cost of each.
        """
        if not rows:
            return
        trial, self._trial = self._trial, None
        if trial is not None and rows != trial[0]:
            before, then = trial
            if took > then * (_FEWER_HELP if rows < before else _MORE_HELP * rows / before):
                self._settle(before, then)
                return
            if before < rows < MOST_ROWS:
                self._try(rows, took, _MORE * rows)
                return
        if self._content and TARGET_MS < took <= 2 * self._settled_ms:
            self._content -= 1
        elif took > TARGET_MS:
            self._try(rows, took, round(rows * TARGET_MS / took) if rows > LEAST_ROWS else _MORE * rows)
        elif took < _FEWER_HELP * TARGET_MS and rows >= self.rows:
            self.rows = MOST_ROWS if took <= 0 else min(MOST_ROWS, round(rows * TARGET_MS / took))

    def _try(self, rows: int, took: float, other: int) -> None:
        self._trial = (rows, took)
        self.rows = min(MOST_ROWS, max(LEAST_ROWS, other))

    def _settle(self, rows: int, took: float) -> None:
        self.rows, self._settled_ms, self._content = rows, took, _CONTENT


def feeds_rows(kinds: Sequence[str]) -> bool:
    """Return whether a row function receives the chain's input rows, and no function takes whole batches."""
    first = next((index for index, kind in enumerate(kinds) if kind in _ROW_KINDS), None)
    return first is not None and _BEFORE.issuperset(kinds[:first]) and "map_batches" not in kinds
