"""`KeySpace`: the row state (`tables.row_state.RowState`) as its tables see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    import pyarrow as pa

    from penstock.kernels.compiler.compile import I32, I64
    from penstock.kernels.keys.key_columns import KeyColumns
    from penstock.state.keys.key_index import KeyIndex, KeyView
    from penstock.state.log.frozen import FrozenSource
    from penstock.state.log.row_spec import RowSpec
    from penstock.state.memory.budget import EvictionPolicy
    from penstock.state.tiers.cold_records import KeyRows, RowPacker, SpillStore
    from penstock.state.tiers.range_fetcher import RangeFetcher


class KeySpace(Protocol):
    """Keys by slot, which full memory evicts, and their records; each method is described in `RowState`."""

    index: KeyIndex
    policy: EvictionPolicy
    #: The store of evicted and remote keys; None: all keys stay in memory, or in stores of panes.
    cold: SpillStore | None
    #: Whether full memory evicts keys.
    evicts: bool
    #: Of each slot, whether a cold store may have rows of the key.
    stored: np.ndarray

    @property
    def fetcher(self) -> RangeFetcher[Any] | None:
        """See `RowState.fetcher`."""

    def upsert(self, keys: KeyColumns, hashes: I64) -> I32:
        """Return the slots of rows; see `RowState.upsert`."""

    def find(self, keys: KeyColumns, hashes: I64) -> tuple[KeyView, I32, bool]:
        """Return a single key; see `RowState.find`."""

    def every_key(self) -> Iterator[I32]:
        """Yield the slots of all restored keys; see `RowState.every_key`."""

    def most_keys(self, most: int) -> int:
        """Return how many keys may enter memory; see `RowState.most_keys`."""

    def register(
        self,
        source: FrozenSource[Any],
        types: Sequence[pa.DataType] | None = None,
        columns: Callable[[pa.RecordBatch], list[pa.Array]] | None = None,
    ) -> RowPacker:
        """Add a state with parts of records; see `RowState.register`."""

    def evicted_rows(self, keys: KeyView, slots: I32, packer: RowPacker) -> KeyRows | None:
        """Return one part of an evicted key's record; see `RowState.evicted_rows`."""

    def live_rows(
        self,
        source: FrozenSource[RowSpec],
        packer: RowPacker,
        key: tuple[KeyColumns, I64],
        most: int,
        rows_at: Callable[[I32], KeyRows],
    ) -> pa.Table:
        """Return the rows of a single key; see `RowState.live_rows`."""

    def note_changed(self, slots: I32) -> None:
        """Record that rows of slots were changed; see `RowState.note_changed`."""

    @property
    def slot_bytes(self) -> int:
        """See `RowState.slot_bytes`."""

    def evict_keys(self) -> None:
        """Evict keys; see `RowState.evict_keys`."""

    def drop_dead_keys(self) -> None:
        """Compact the index; see `RowState.drop_dead_keys`."""

    def settle(self) -> None:
        """Count memory after a batch; see `RowState.settle`."""

    def settle_load(self) -> None:
        """Count memory after a part of a restore; see `RowState.settle_load`."""

    def report(self) -> None:
        """Report the memory in use; see `RowState.report`."""
