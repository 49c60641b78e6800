"""Partitioners at run time: they assign the rows of a batch to channels and lose or repeat none.

Made by `output.ResultPartition` from the partitioner value on the edge; the compiled split is in `penstock.kernels`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from penstock.core.errors import GraphError
from penstock.graph.job_graph import Broadcast, Forward, KeyGroup, Partitioner, Rebalance

if TYPE_CHECKING:
    import pyarrow as pa

#: Rows for one channel.
Slice = tuple[int, "pa.RecordBatch"]


class Splitter(Protocol):
    """Splits batches into per-channel batches, in channel order, without empty ones."""

    def split(self, batch: pa.RecordBatch) -> list[Slice]:
        """Return (channel, rows) pairs; rows keep their order within a channel."""


@dataclass(frozen=True, slots=True)
class SplitKernels:
    """The compiled functions of the keyed split; a test may pass numpy versions."""

    #: (batch, key columns, key groups, parallelism) -> (row order, offset of each subtask in it).
    order_by_owner: Callable[[Any, tuple[str, ...], int, int], tuple[Any, Any]]
    #: (batch, order, offsets) -> one batch or None per subtask.
    take_split: Callable[[Any, Any, Any], Sequence[Any]]


class SingleSplitter:
    """Sends all rows to a single channel (Forward, and every partitioner at parallelism 1)."""

    def split(self, batch: pa.RecordBatch) -> list[Slice]:
        """Return the batch itself for channel 0."""
        return [(0, batch)]


class RebalanceSplitter:
    """Sends whole batches round robin; senders start at different channels so that short streams spread too."""

    def __init__(self, channels: int, first: int = 0) -> None:
        """Start at channel `first` modulo `channels`."""
        self._channels = channels
        self._next = first % channels

    def split(self, batch: pa.RecordBatch) -> list[Slice]:
        """Return the batch for the next channel."""
        channel = self._next
        self._next = (channel + 1) % self._channels
        return [(channel, batch)]


class BroadcastSplitter:
    """Sends every row to every channel (rows out = rows in times channels)."""

    def __init__(self, channels: int) -> None:
        """Send to `channels` channels."""
        self._channels = channels

    def split(self, batch: pa.RecordBatch) -> list[Slice]:
        """Return the batch once per channel."""
        return [(channel, batch) for channel in range(self._channels)]


class KeyGroupSplitter:
    """Sends rows to the owner of their key's group: one compiled pass, one take, zero-copy slices."""

    def __init__(self, columns: tuple[str, ...], key_groups: int, channels: int, kernels: SplitKernels) -> None:
        """Split by the key `columns` over `channels` subtasks."""
        self._columns = columns
        self._key_groups = key_groups
        self._channels = channels
        self._kernels = kernels

    def split(self, batch: pa.RecordBatch) -> list[Slice]:
        """Return the rows of each owner.

        Raises:
            RuntimeError: the split lost or repeated rows.
        """
        kernels = self._kernels
        order, offsets = kernels.order_by_owner(batch, self._columns, self._key_groups, self._channels)
        parts = kernels.take_split(batch, order, offsets)
        slices = [(channel, part) for channel, part in enumerate(parts) if part is not None and part.num_rows]
        rows = sum(part.num_rows for _, part in slices)
        if rows != batch.num_rows:
            raise RuntimeError(f"the keyed split made {rows} rows of {batch.num_rows}")
        return slices


def splitter_for(
    partitioner: Partitioner, *, channels: int, key_groups: int, subtask: int = 0, kernels: SplitKernels | None = None
) -> Splitter:
    """Return the splitter of an edge with `channels` channels, as used by sending subtask `subtask`.

    Raises:
        GraphError: a forward edge has more than one channel.
    """
    match partitioner:
        case Forward() if channels != 1:
            raise GraphError(f"a forward edge has one channel, not {channels}", hint="equal parallelism on both sides")
        case _ if channels == 1:
            return SingleSplitter()
        case KeyGroup(columns):
            return KeyGroupSplitter(columns, key_groups, channels, kernels or compiled_kernels())
        case Rebalance():
            return RebalanceSplitter(channels, subtask)
        case Broadcast():
            return BroadcastSplitter(channels)
    raise GraphError(f"unknown partitioner {partitioner!r}")


def compiled_kernels() -> SplitKernels:
    """Return the compiled split."""
    from penstock.kernels.keys.split import order_by_owner, take_split  # kernels are loaded only where keys are split

    return SplitKernels(order_by_owner, take_split)
