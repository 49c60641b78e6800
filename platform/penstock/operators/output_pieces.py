"""`OutputPieces`: output of any size, produced in bounded batches.

For operators that may produce any number of rows for one batch or watermark. They produce output in generators; the
task asks for more when there is room (`go_on`), and passes no input, barriers included, before all output is emitted.
So a checkpoint contains no pending output. Used by `operators.joins.join_side` and `operators.joins.window_rows_join`.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol, TypeAlias

from penstock.core.elements import Batch, Watermark, WatermarkStatus
from penstock.state.memory.limits import PRODUCTION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.operators.operator import Collector

Piece: TypeAlias = Batch | Watermark | WatermarkStatus


class OutputPieces:
    """A queue of output generators."""

    def __init__(self, most_rows: int = PRODUCTION.output_rows) -> None:
        """Make an empty queue; about `most_rows` rows are emitted at a time."""
        self._most_rows = most_rows
        self._work: deque[Iterator[Piece]] = deque()

    @property
    def held(self) -> bool:
        """Whether output may be pending."""
        return bool(self._work)

    def begin(self, work: Iterator[Piece], out: Collector) -> None:
        """Emit the first rows of `work`; if other generators precede it, only queue it."""
        self._work.append(work)
        if len(self._work) == 1:
            self.go_on(out)

    def go_on(self, out: Collector) -> bool:
        """Emit the next rows, and the other elements before the row after them; return whether there were any."""
        rows, some = 0, False
        while self._work and rows < self._most_rows:
            piece = next(self._work[0], None)
            if piece is None:
                self._work.popleft()
                continue
            some = True
            if isinstance(piece, Batch):
                rows += piece.num_rows
                out.batch(piece)
            elif isinstance(piece, Watermark):
                out.watermark(piece)
            else:
                out.status(piece)
        return some

    def drain(self, out: Collector) -> None:
        """Emit all pending output."""
        while self._work:
            self.go_on(out)


class PutsOutPieces(Protocol):
    """The hooks that operators with `OutputPieces` share."""

    _pieces: OutputPieces

    @property
    def available(self) -> bool:
        """False while output is pending."""
        return not self._pieces.held

    @property
    def held(self) -> bool:
        """Whether output is pending."""
        return self._pieces.held

    def go_on(self, out: Collector) -> bool:
        """Emit the next batch of pending output; return whether there was any."""
        return self._pieces.go_on(out)
