"""`OutputPieces`: what an operator has to put out, made a piece at a time, however much it is altogether.

For operators one batch or watermark of which may give any number of rows. They make their output in generators; the
task asks for more when there is room (`go_on`), and gives them nothing, barriers included, before the last piece is
out. So nothing of what is under way belongs to a checkpoint. Used by `operators.joins.join_side` and
`operators.joins.window_rows_join`.
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
    """Generators of output, one after the other."""

    def __init__(self, most_rows: int = PRODUCTION.output_rows) -> None:
        """Nothing is to be put out; about `most_rows` come out at a time."""
        self._most_rows = most_rows
        self._work: deque[Iterator[Piece]] = deque()

    @property
    def held(self) -> bool:
        """Whether something may still be to come."""
        return bool(self._work)

    def begin(self, work: Iterator[Piece], out: Collector) -> None:
        """Put out the first rows of `work`, unless others are before it: then it has not begun when this returns."""
        self._work.append(work)
        if len(self._work) == 1:
            self.go_on(out)

    def go_on(self, out: Collector) -> bool:
        """Put out the next rows, and what follows before the row after them; return whether there was any."""
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
        """Put out all that is left."""
        while self._work:
            self.go_on(out)


class PutsOutPieces(Protocol):
    """What such operators tell the task alike."""

    _pieces: OutputPieces

    @property
    def available(self) -> bool:
        """False: output is under way."""
        return not self._pieces.held

    @property
    def held(self) -> bool:
        """Whether output is under way."""
        return self._pieces.held

    def go_on(self, out: Collector) -> bool:
        """Emit the next piece of what is under way; return whether there was any."""
        return self._pieces.go_on(out)
