"""`RowPieces`: what a chain with row functions is given at a time, by the measured time of a row.

A batch of a full buffer has tens of thousands of rows: as Python objects they no longer fit the processor's cache,
and everything else in the thread (mails, flushes, the other subtasks) waits until the last of them is done. So such
chains are fed in pieces of at most `MOST_ROWS`, and of fewer where a row takes long. Kept by `task.drive.subtask`.
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

#: So many rows and their values are about the second-level cache of a core.
MOST_ROWS = 4096
#: A piece should take no longer; one of fewer rows than this would cost more in its overhead.
TARGET_MS = 10.0
LEAST_ROWS = 64
#: A piece that takes too long is compared with one of fewer rows, which must take no more than this part of its time;
#: or with one of more, which must not take this part of what they would at the same time a row.
_FEWER_HELP, _MORE_HELP, _MORE = 0.75, 0.5, 4
#: Pieces until the other size is tried again where it did not help.
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
        """Chains without row functions are fed whole batches."""
        self._chain = chain
        self._clock = clock
        kinds = [operator.kind for operator in operators]
        self._cuts = feeds_rows(kinds)
        #: Who says how many rows a source is asked for; None: as many as it thinks best.
        self._asks: RowPieces | PollRows | None = self if self._cuts else PollRows() if columns_alone(kinds) else None
        self._rest: Batch | None = None
        self._input_index = 0
        #: Rows of the next piece.
        self.rows = LEAST_ROWS
        #: Rows and time of the last piece when the next one is of another size to be compared with it.
        self._trial: tuple[int, float] | None = None
        #: Pieces may take so long for a while.
        self._settled_ms, self._content = 0.0, 0

    @property
    def waiting(self) -> bool:
        """Whether a part of the last batch is still to be fed."""
        return self._rest is not None

    def feed(self, batch: Batch, input_index: int) -> None:
        """Feed a batch, or its first piece."""
        if self._cuts:
            self._rest, self._input_index = batch, input_index
            self.go_on()
        else:
            self._chain.batch(batch, input_index)

    def go_on(self) -> None:
        """Feed the next piece of the batch."""
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
        """Let the source at the head emit a piece; True if it did."""
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
        """Learn from a piece.

        What takes long may be done once a piece (a slow sink, a poll): then fewer rows only make each of them dearer.
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
    """Whether rows come to a row function as they come into the chain, and no function asks for whole batches."""
    first = next((index for index, kind in enumerate(kinds) if kind in _ROW_KINDS), None)
    return first is not None and _BEFORE.issuperset(kinds[:first]) and "map_batches" not in kinds
