"""State that arrives after its operator has begun: what rows wait for, and a local restore that loads it in parts.

`ArrivingState` is what `task.drive.waiting_rows` needs to know; `PartialRestore` is the one of tables in memory or on
the local disk, made by `state.store`, and `state.tiers.range_fetcher.RangeFetcher` that of remote tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.keygroup import HashRange
    from penstock.kernels.compiler.compile import I64, Mask


class ArrivingState(Protocol):
    """Keyed state of which a part is not there yet; hashes are those of keys."""

    @property
    def complete(self) -> bool:
        """Whether no row has to wait any more."""

    @property
    def only_rows(self) -> bool:
        """Whether only rows may be processed before it is complete: no watermark, timer or end of input."""

    @property
    def changes(self) -> int:
        """A number that changes with the result of `unfetched`."""

    def unfetched(self, hashes: I64) -> Mask:
        """Return a mask of the hashes whose rows have to wait."""

    def wait_for(self, hashes: I64) -> None:
        """Let the state of these hashes arrive early, if there is a choice."""


class PartialRestore:
    """Loads the restored rows of a table by ascending hash range, a part at a time, in the owner's thread.

    Until it is complete, the table has no row of the other parts, and must not be read or changed there. A freeze is
    complete at any time, as the log has the restored segments from the start.
    """

    def __init__(self, hash_range: HashRange, parts: int, load: Callable[[HashRange], None]) -> None:
        """Load nothing yet; `load` adds the rows of a hash range, and is called once for each, in ascending order."""
        self._parts = hash_range.split(parts)
        self._loaded = 0
        #: None after the last part: it keeps segments open.
        self._load: Callable[[HashRange], None] | None = load

    @property
    def complete(self) -> bool:
        """Whether all parts are loaded."""
        return self._loaded == len(self._parts)

    @property
    def only_rows(self) -> bool:
        """See `ArrivingState`: windows, timers and queries see all keys."""
        return not self.complete

    @property
    def changes(self) -> int:
        """The number of parts that are loaded."""
        return self._loaded

    def unfetched(self, hashes: I64) -> Mask:
        """Return a mask of the hashes in parts that are not loaded."""
        found: Mask = np.zeros(len(hashes), np.bool_) if self.complete else hashes >= self._parts[self._loaded].low
        return found

    def wait_for(self, hashes: I64) -> None:
        """Change nothing: segments are read in ascending order, each row group once."""

    def load_next(self) -> None:
        """Load the next part.

        Raises:
            PenstockError: as the declaration of the table.
        """
        assert self._load is not None  # noqa: S101 - not complete
        self._load(self._parts[self._loaded])
        self._loaded += 1
        if self.complete:
            self._load = None

    def load_rest(self) -> None:
        """Load all parts that are left; raises as `load_next`."""
        while not self.complete:
            self.load_next()
