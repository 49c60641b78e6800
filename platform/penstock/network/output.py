"""The outgoing edge of one subtask: partitioner, subpartitions, flush deadlines, back-pressure and counters.

The splitters assign the rows of a batch to channels and lose or repeat none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from penstock.core.elements import Barrier, Batch, Watermark, WatermarkStatus
from penstock.core.errors import GraphError
from penstock.core.schema import schema_from_text
from penstock.core.views import plain_schema
from penstock.graph.job_graph import Broadcast, Forward, KeyGroup, Partitioner, Rebalance
from penstock.network.credit import exclusive_bytes
from penstock.network.in_flight import OvertakenRows, QueuedRows
from penstock.network.subpartition import ChannelLimits, CombinedRows, PartitionBackpressure, Subpartition

if TYPE_CHECKING:
    from penstock.config.settings import JobSettings
    from penstock.core.clock import Clock
    from penstock.graph.task_deployment import OutputSpec

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
    from penstock.kernels.rows.key_group_split import (  # kernels are loaded only where keys are split
        order_by_owner,
        take_split,
    )

    return SplitKernels(order_by_owner, take_split)


#: Smaller batches are gathered until the buffer time-out before they are split by key: a split costs some 50 us even
#: for few rows.
_MIN_SPLIT_BYTES = 64 << 10
#: Bytes of a row before the first batch, if it has no fixed size.
_BYTES_OF_ROW = 100.0


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """The parameters of a partition besides its edge."""

    settings: JobSettings
    clock: Clock
    #: The sending subtask.
    subtask: int = 0
    #: Called from another thread when the partition has become available again.
    on_available: Callable[[], None] | None = None
    #: Numpy versions of the compiled split, for tests.
    kernels: SplitKernels | None = None


class Combiner(Protocol):
    """Combines rows before they are sent, on behalf of the downstream operator that would aggregate them."""

    @property
    def schema(self) -> pa.Schema:
        """Return the columns of combined rows."""

    def combine(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """Return fewer rows, in the form that their receiver expects of combined ones; None: send them as they are."""


class ResultPartition:
    """All channels of one outgoing edge of one subtask."""

    def __init__(self, spec: OutputSpec, options: OutputOptions) -> None:
        """Make the channels; they open when their receivers grant credit."""
        settings = options.settings
        self.spec = spec
        self.schema = schema_from_text(spec.schema) if spec.schema else None
        self._clock = options.clock
        self._budget = PartitionBackpressure(options.on_available)
        exclusive = exclusive_bytes(settings, spec.width)
        limits = ChannelLimits(
            buffer_size_bytes=min(max(1, settings.buffer_size_bytes), exclusive),
            buffer_timeout_ms=settings.buffer_timeout_ms,
            exclusive_bytes=exclusive,
        )
        self.channels = tuple(Subpartition(limits, self._budget) for _ in spec.channels)
        self._splitter = splitter_for(
            spec.partitioner,
            channels=len(self.channels),
            key_groups=settings.key_groups,
            subtask=options.subtask,
            kernels=options.kernels,
        )
        #: Rows that wait to be split, their bytes and deadline; and the watermark after them.
        self._rows: list[pa.RecordBatch] = []
        self._rows_bytes = 0
        self._rows_due_ms = 0.0
        self._watermark: Watermark | None = None
        self._min_split_bytes = min(_MIN_SPLIT_BYTES, limits.buffer_size_bytes)
        self._gathers = (
            isinstance(spec.partitioner, KeyGroup) and len(self.channels) > 1 and settings.buffer_timeout_ms > 0
        )
        #: Rows put in (Flink's numRecordsOut), and the bytes of rows as they are sent.
        self.records_out = 0
        self.bytes_out = 0
        #: Rows among them that were not sent because combined rows represent them.
        self.records_combined = 0
        self._combiner: Combiner | None = None
        self._row_bytes = fixed_row_bytes(self.schema) if self.schema is not None else None
        #: As it was in the last batch.
        self._bytes_of_row = self._row_bytes or _BYTES_OF_ROW
        #: A lower bound of the earliest deadline of a channel: one check at every step, for any number of channels.
        self._next_deadline_ms: float | None = None
        self._due_ms = limits.due_ms
        #: Time of the last output that left because it was due; initially long ago.
        self._last_flush_ms = options.clock.monotonic_ms() - settings.buffer_timeout_ms

    def combine_with(self, combiner: Combiner) -> None:
        """Use `combiner` for every batch; before the first batch."""
        self._combiner = combiner

    def batch(self, batch: Batch) -> None:
        """Send rows to the channels they belong to.

        Raises:
            GraphError: the rows do not have the edge's columns.
        """
        data = self._conform(batch.data)
        if not data.num_rows:
            return
        # Arrow's exact size of a slice costs 10 us: computed at most once per batch and divided among the slices
        size = data.num_rows * self._row_bytes if self._row_bytes is not None else float(data.nbytes)
        row_bytes = self._bytes_of_row = size / data.num_rows
        self.records_out += data.num_rows
        self.bytes_out += int(size)
        due = self._due()
        if self._gathers:
            if not self._rows:
                self._rows_due_ms = due
            if size < self._min_split_bytes:
                self._rows.append(data)
                self._rows_bytes += int(size)
                if self._rows_bytes >= self._min_split_bytes:
                    self._split_gathered()
                return
            self._split_gathered()
        self._split(data, row_bytes, due)

    def _split(self, data: pa.RecordBatch, row_bytes: float, due_ms: float) -> None:
        combined_rows = None if self._combiner is None else self._combiner.combine(data)
        combined = combined_rows is not None
        if combined_rows is not None:
            self.records_combined += data.num_rows - combined_rows.num_rows
            self.bytes_out -= int(data.num_rows * row_bytes) - combined_rows.nbytes
            data, row_bytes = combined_rows, combined_rows.nbytes / combined_rows.num_rows
        for channel, rows in self._splitter.split(data):
            self.channels[channel].add_rows(rows, max(1, int(rows.num_rows * row_bytes)), due_ms, combined=combined)

    def _split_gathered(self) -> None:
        """Split the gathered rows; in the channels they wait no longer than rows that were split at once."""
        if not self._rows:
            return
        data = self._rows[0] if len(self._rows) == 1 else pa.concat_batches(self._rows)
        size, self._rows, self._rows_bytes = self._rows_bytes, [], 0
        self._split(data, size / data.num_rows, self._rows_due_ms)
        watermark, self._watermark = self._watermark, None
        if watermark is not None:
            for channel in self.channels:
                channel.add_event(watermark, self._rows_due_ms)

    def watermark(self, watermark: Watermark) -> None:
        """Send a watermark after all rows so far, on every channel."""
        if self._rows:
            self._watermark = watermark
        else:
            self._event(watermark)

    def status(self, status: WatermarkStatus) -> None:
        """Send idle or active, on every channel."""
        self._split_gathered()
        self._event(status)

    def barrier(self, barrier: Barrier) -> None:
        """Flush, then send the barrier on every channel."""
        self._split_gathered()
        for channel in self.channels:
            channel.add_barrier(barrier)

    def barrier_in_order(self, barrier: Barrier, rows: OvertakenRows, wake: Callable[[], None]) -> None:
        """Flush, then send the barrier on every channel, after the rows unless `overtake` is called later.

        The channels where it waits are `missing` in `rows`; `wake` is called when it has left one of them.
        """
        if not self.spec.overtakes:
            self.barrier(barrier)
            return
        self._split_gathered()
        for receiver, channel in enumerate(self.channels):
            place = self.spec.overtakes, receiver
            rows.missing.add(place)
            channel.add_barrier(barrier, partial(_barrier_left, rows, place, wake))

    def overtake(self, barrier: Barrier, rows: OvertakenRows) -> None:
        """Send the barrier on every channel before all rows that have not left, and add these to `rows`.

        On an edge that keeps its order the barrier stays after the rows.
        """
        if not self.spec.overtakes:
            self.barrier(barrier)
            return
        self._split_gathered()
        for receiver, channel in enumerate(self.channels):
            self._add_overtaken(rows, receiver, channel.overtake(barrier))

    def overtake_late(self, rows: OvertakenRows) -> None:
        """Do the same on the channels where the barrier waits since `barrier_in_order`."""
        for receiver, channel in enumerate(self.channels):
            place = self.spec.overtakes, receiver
            overtaken = channel.overtake_waiting() if place in rows.missing else None
            if overtaken is not None:
                self._add_overtaken(rows, receiver, overtaken)
                rows.missing.discard(place)

    def _add_overtaken(self, rows: OvertakenRows, receiver: int, overtaken: list[tuple[Any, int]]) -> None:
        combined = self._combiner.schema if self._combiner is not None else None
        for item, _size in overtaken:
            schema = combined if isinstance(item, CombinedRows) else self.schema
            rows.sent.append(QueuedRows(self.spec.overtakes, receiver, item, schema))

    def end(self) -> None:
        """Flush, then send the end of input on every channel; only barriers may follow."""
        self._split_gathered()
        for channel in self.channels:
            channel.add_end()

    def flush(self) -> None:
        """Send everything that waits, before its deadline too."""
        self._split_gathered()
        self._next_deadline_ms = None
        for channel in self.channels:
            channel.flush()

    def flush_due(self, now_ms: float) -> None:
        """Send what has waited for the buffer time-out."""
        if self._rows and self._rows_due_ms <= now_ms:
            self._split_gathered()
        earliest = self._rows_due_ms if self._rows else None
        for channel in self.channels:
            if channel.deadline_ms is not None and channel.deadline_ms <= now_ms:
                channel.flush()
                self._last_flush_ms = now_ms
            if channel.deadline_ms is not None and (earliest is None or channel.deadline_ms < earliest):
                earliest = channel.deadline_ms
        self._next_deadline_ms = earliest

    @property
    def next_deadline_ms(self) -> float | None:
        """Return when `flush_due` may have work; None: nothing waits."""
        return self._next_deadline_ms

    @property
    def available(self) -> bool:
        """Return whether every channel is below its bound."""
        return self._budget.available

    @property
    def room_rows(self) -> int | None:
        """Return about how many rows have room until the receivers' windows are full; None without windows."""
        rooms = [room for channel in self.channels if (room := channel.room_bytes) is not None]
        if not rooms:
            return None
        divided = isinstance(self.spec.partitioner, KeyGroup)  # otherwise a channel gets all rows of a batch
        room = sum(rooms) if divided else min(rooms)
        return max(1, int((room - self._rows_bytes) / self._bytes_of_row))

    @property
    def queued_bytes(self) -> int:
        """Return the bytes of rows that have not left."""
        return self._rows_bytes + sum(channel.queued_bytes for channel in self.channels)

    def close(self) -> None:
        """Drop everything that has not left."""
        self._rows, self._rows_bytes, self._watermark = [], 0, None
        for channel in self.channels:
            channel.close()

    def _event(self, event: Watermark | WatermarkStatus) -> None:
        due = self._due()
        for channel in self.channels:
            channel.add_event(event, due)

    def _due(self) -> float:
        """Return the deadline of data that is added now, and schedule a flush by then."""
        due = self._due_ms(self._clock.monotonic_ms(), self._last_flush_ms)
        if self._next_deadline_ms is None:
            self._next_deadline_ms = due
        return due

    def _conform(self, data: pa.RecordBatch) -> pa.RecordBatch:
        """Return `data` with the edge's schema, without which the receiver cannot decode it."""
        schema = self.schema
        if schema is None or data.schema.equals(schema):
            return data
        if len(data.schema) > len(schema) and set(schema.names) <= set(data.schema.names):
            data = data.select(schema.names)  # the receiver needs only these
            if data.schema.equals(schema):
                return data
        same = data.schema.names == schema.names
        if same and (data.schema.types == schema.types or plain_schema(data.schema).types == schema.types):
            # only nullability or metadata differ; or there are views, which are cast, as their pool would be sent too
            return pa.RecordBatch.from_arrays(data.columns, schema=schema)
        raise GraphError(
            f"rows have columns {_columns(data.schema)}, the edge has {_columns(schema)}",
            hint="an operator emits rows with another schema than it declares",
        )


def _barrier_left(rows: OvertakenRows, place: tuple[str, int], wake: Callable[[], None]) -> None:
    rows.missing.discard(place)
    wake()


def fixed_row_bytes(schema: pa.Schema) -> float | None:
    """Return the bytes of a row if all columns have a fixed width, else None."""
    bits = 0
    for field in schema:
        try:
            bits += field.type.bit_width + (1 if field.nullable else 0)
        except ValueError:
            return None
    return bits / 8


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
