"""Splits whose rows are made by number: their enumerator, and a reader that makes an even share of each at a rate.

Used by the generators: `datagen`, `nexmark`, and `workloads` (the enumerator; its reader makes one split a poll).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from penstock.connector.source import HistorySplit, PollResult, SourceBatch, SourceSplit
from penstock.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    import pyarrow as pa

    from penstock.core.clock import Clock


class Rows(Protocol):
    """The rows of a generator."""

    def end(self, split: int) -> int | None:
        """Return how many rows a split has; None = without end."""

    def make(self, split: int, position: int, count: int) -> pa.RecordBatch:
        """Return `count` rows of a split, from row `position` on."""

    def due(self, elapsed_ms: float) -> int | None:
        """Return how many rows of a split the rate lets through in that time; None = as many as are taken."""


class SplitEnumerator:
    """Lists the splits: `<name>-0` and so on."""

    def __init__(self, name: str, splits: int) -> None:
        """The same in every run."""
        self._name = name
        self._splits = splits

    def discover(self, known: frozenset[str]) -> tuple[SourceSplit, ...]:
        """Return the splits not in `known`."""
        ids = [(f"{self._name}-{index}", index) for index in range(self._splits)]
        return tuple(
            SourceSplit(id=split_id, state={"index": index, "position": 0})
            for split_id, index in ids
            if split_id not in known
        )

    def close(self) -> None:
        """Nothing to free."""


@dataclass(slots=True)
class _Progress:
    index: int
    position: int
    end: int | None
    #: Where and when this reader began, for the rate limit.
    began_at: int
    began_ms: float
    finished: bool = False
    paused: bool = False


class RowReader:
    """Generates the rows of its splits; position = the next row's number within the split."""

    def __init__(self, rows: Rows, clock: Clock, first_poll: Callable[[], None] | None = None) -> None:
        """`first_poll` is called once, before the first row is made."""
        self._rows = rows
        self._clock = clock
        self._first_poll = first_poll
        self._splits: dict[str, _Progress] = {}

    def add_splits(self, splits: tuple[SourceSplit, ...]) -> None:
        """Start from the splits' positions."""
        now = self._clock.monotonic_ms()
        for split in splits:
            position, index = int(split.state["position"]), int(split.state["index"])
            end = split.state.get("end", self._rows.end(index))
            self._splits[split.id] = _Progress(index, position, end, position, now, finished=split.finished)

    def poll(self, max_rows: int) -> PollResult:
        """Generate up to `max_rows` rows, an even share of each split."""
        active = [(split_id, p) for split_id, p in self._splits.items() if not (p.finished or p.paused)]
        if not active:
            return PollResult()
        if self._first_poll is not None:
            self._first_poll()
            self._first_poll = None
        now = self._clock.monotonic_ms()
        share = max(1, max_rows // len(active))
        batches, finished, caught_up = [], [], []
        drained = True
        for split_id, progress in active:
            due = self._rows.due(now - progress.began_ms)
            count = share if due is None else min(share, progress.began_at + due - progress.position)
            if progress.end is not None:
                count = min(count, progress.end - progress.position)
            drained = drained and due is not None and count < share
            if count > 0:
                batches.append(SourceBatch(self._rows.make(progress.index, progress.position, count), (split_id,)))
                progress.position += count
            if progress.end is not None and progress.position >= progress.end:
                progress.finished = True
                finished.append(split_id)
            elif count <= 0:
                caught_up.append(split_id)
        return PollResult(tuple(batches), tuple(finished), tuple(caught_up), drained=drained)

    def pause_or_resume_splits(self, pause: tuple[str, ...], resume: tuple[str, ...]) -> None:
        """Make no rows of some splits; the rate goes on meanwhile."""
        for split_id in (*pause, *resume):
            self._splits[split_id].paused = split_id in pause

    def snapshot(self) -> tuple[SourceSplit, ...]:
        """Return every split with its position."""
        return tuple(
            SourceSplit(id=split_id, state={"index": p.index, "position": p.position}, finished=p.finished)
            for split_id, p in self._splits.items()
        )

    def notify_complete(self, splits: tuple[SourceSplit, ...]) -> None:
        """Nothing outside wants to know."""

    def close(self) -> None:
        """Nothing to free."""


def history(
    rows: Rows,
    enumerator: SplitEnumerator,
    between: tuple[dict[str, Any] | None, dict[str, Any]],
    piece_rows: int | None,
) -> tuple[HistorySplit, ...]:
    """Return every split up to its position, or to its end; `between` is `begin` and `until` of `HistoryFactory`.

    Raises:
        UsageError: a split without end is given none; one would begin behind its end, or `begin` does not have it.
    """
    begin, until = between
    splits = enumerator.discover(frozenset())
    starts = {} if begin is None else _positions(begin, splits)
    given = None if "begin" in until or not until else _positions(until, splits)
    found = []
    for split in splits:
        if begin is not None and split.id not in starts:
            raise UsageError(f"no position is given for {split.id}", hint="give every split one where it is to begin")
        index = int(split.state["index"])
        end, start = rows.end(index), starts.get(split.id, 0)
        if end is not None and start > end:
            raise UsageError(
                f"position {start} of {split.id!r} is beyond its end at {end}", hint="is it this source's?"
            )
        cut = start if "begin" in until else end if given is None else given.get(split.id, 0)
        if cut is None:
            raise UsageError(f"split {split.id!r} has no end", hint="give positions: orders-0=1000,...")
        cut = cut if end is None else min(cut, end)
        low = min(start, cut)
        bounds = [*range(low, cut, piece_rows or max(1, cut - low)), cut]
        pieces = tuple(
            SourceSplit(id=split.id, state={"index": index, "position": at, "end": stop}, finished=at >= stop)
            for at, stop in zip(bounds, bounds[1:] or bounds, strict=False)
        )
        rest = SourceSplit(id=split.id, state={"index": index, "position": cut})
        found.append(HistorySplit(pieces, rest, low, start))
    return tuple(found)


def _positions(given: dict[str, Any], splits: tuple[SourceSplit, ...]) -> dict[str, int]:
    if "timestamp" in given:
        raise UsageError("rows that are generated have no time of writing", hint="give positions: orders-0=1000,...")
    positions = {split_id: int(at) for split_id, at in given["positions"].items()}
    unknown = sorted(set(positions) - {split.id for split in splits})
    if unknown:
        raise UsageError(f"there is no split {unknown[0]!r}", hint=f"there are {', '.join(s.id for s in splits)}")
    return positions
