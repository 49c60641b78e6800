"""The incoming side of one subtask: a queue per channel, fair polling, credit, and blocking for alignment.

Carriers (`channel_table.LocalLink`, `session.Session`) call `connect`, `receive` and `fail` from any thread; the
subtask's thread calls `poll`, `block`, `unblock`. `on_data` wakes the task when `poll` may return an element again
after it has returned None.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from penstock.core.elements import Barrier, Batch, EndOfInput, StreamElement, Watermark
from penstock.core.schema import schema_from_text
from penstock.network.credit import GateCredit
from penstock.network.debloater import Debloater
from penstock.network.in_flight import OvertakenRows, QueuedRows
from penstock.network.network_memory import GateShare, GateWant, gate_want
from penstock.network.subpartition import CombinedRows, ConnectionLostError

if TYPE_CHECKING:
    from penstock.config.settings import JobSettings
    from penstock.core.clock import Clock
    from penstock.graph.task_deployment import InputChannelSpec, InputSpec
    from penstock.network.subpartition import Outgoing

#: Rows or an event, bytes of the rows (0 for events), and their cost in the channel's credit.
_Item = tuple[Any, int, int]
#: Largest batch made from rows of several channels: larger ones gain nothing, and would be copied.
_SMALL_BYTES = 32 << 10


class Grant(Protocol):
    """Grants credit to the sender of one channel."""

    def __call__(self, amount: int, window: int = 0) -> None:
        """Send `amount` bytes of credit, and the window of the channel if it is not 0."""


@dataclass(slots=True)
class _Channel:
    spec: InputChannelSpec
    input_index: int
    schema: pa.Schema | None
    queue: deque[_Item] = field(default_factory=deque)
    blocked: bool = False
    #: Whether it is in the round of channels to poll.
    ready: bool = False
    #: The end of input has arrived; only barriers follow.
    end_received: bool = False
    next_sequence: int = 0
    grant: Grant | None = None
    #: Id of the edge if barriers may overtake its rows.
    edge: str = ""
    #: Takes the rows that arrive until the barrier of its checkpoint has.
    collects: OvertakenRows | None = None


class InputGate:
    """All incoming channels of one subtask."""

    def __init__(
        self,
        inputs: tuple[InputSpec, ...],
        settings: JobSettings,
        on_data: Callable[[], None],
        small_bytes: int = _SMALL_BYTES,
        clock: Clock | None = None,
        share: GateShare | None = None,
    ) -> None:
        """Number the channels flat, in the order of `inputs` and of their channels.

        Rows of several channels become one batch up to `small_bytes`. With `clock`, the gate bounds in-flight rows by
        time if the settings say so. `share` bounds its memory; None: only the settings do.
        """
        self._small_bytes = small_bytes
        self._channels: list[_Channel] = []
        for spec in inputs:
            schema = schema_from_text(spec.schema) if spec.schema else None
            for channel in spec.channels:
                self._channels.append(_Channel(channel, spec.input_index, schema, edge=spec.overtakes))
        self._want = want = gate_want(inputs, settings)
        self._share = GateShare(None, want.floating) if share is None else share
        self._credit = GateCredit(want.exclusive, self._share.floating)
        most = self._most_bytes()
        self._credit.resize(most)
        target_ms = settings.buffer_debloat_target_ms
        self._debloater: Debloater | None = None
        if target_ms and clock is not None:
            self._debloater = Debloater(target_ms, len(want.exclusive), most, clock)
            self._credit.resize(self._debloater.window)
        self._on_data = on_data
        self._lock = threading.Lock()
        self._round: deque[int] = deque()
        self._combined: pa.Schema | None = None
        self._failure: str | None = None
        self._closed = False
        #: Rows of a restored checkpoint, with their channel; they come before all others.
        self._restored: deque[tuple[int, Batch]] = deque()
        #: Whether barriers may overtake the rows of every channel.
        self.overtakes = all(channel.edge for channel in self._channels)
        #: The newest barrier that has arrived since the task took the last one; only if `overtakes`.
        self._received: Barrier | None = None
        self.bytes_queued = 0
        #: Rows and bytes given to the task (Flink's numRecordsIn, numBytesIn).
        self.records_in = 0
        self.bytes_in = 0

    # --- task ---------------------------------------------------------------------------------------------------------

    def expect_combined(self, schema: pa.Schema) -> None:
        """Set the columns of combined rows; before the first `poll`."""
        self._combined = schema

    def poll(self) -> tuple[int, StreamElement] | None:
        """Return the next element of some channel, all channels in turn; None: wait for `on_data`.

        Raises:
            ConnectionLostError: a sender is gone before its end of input.
        """
        with self._lock:
            if self._failure is not None:
                raise ConnectionLostError(self._failure)
            window = None
            if self._debloater is not None:
                idle = bool(self._restored) or not self._round  # restored rows passed no channel
                window = self._debloater.polled(self.bytes_in, idle=idle)
            calls = [] if window is None else self._callbacks(self._credit.resize(window))
            taken = self._take_next(calls)
        for call in calls:
            call()
        if taken is None:
            return None
        index, items = taken
        item, size, _cost = items[0]
        return index, self._rows_of(items, self._channels[index].schema) if size else item

    def _take_next(self, calls: list[Callable[[], None]]) -> tuple[int, list[_Item]] | None:
        """Take the items of the next element, and add the calls that grant the credit of its rows."""
        if self._restored:
            return self._take_restored()
        if not self._round:
            return None
        index = self._round.popleft()
        channel = self._channels[index]
        items, grants = [self._take(channel)], list[tuple[int, int]]()
        item, size, cost = items[0]
        if channel.queue:
            self._round.append(index)
        else:
            channel.ready = False
        if size:
            grants = self._credit.on_consumed(index, cost)
            if size <= self._small_bytes and self._round:
                grants += self._take_small_batches(channel.input_index, items)
        elif isinstance(item, EndOfInput):
            grants = self._credit.on_ended(index)
        calls += self._callbacks(grants)
        return index, items

    def _take(self, channel: _Channel) -> _Item:
        """Take the head of a channel's queue."""
        item = channel.queue.popleft()
        self.bytes_queued -= item[1]
        self.bytes_in += item[1]
        return item

    def _take_small_batches(self, input_index: int, items: list[_Item]) -> list[tuple[int, int]]:
        """Take small batches at the head of other channels of an input too; return the credit to grant for them.

        Operators have a cost for each batch, so rows of several senders that arrived together become one batch.
        Channels have no order among each other.
        """
        grants: list[tuple[int, int]] = []
        combined, room = _are_combined(items[0][0]), self._small_bytes - items[0][1]
        for index in tuple(self._round):
            channel = self._channels[index]
            while channel.input_index == input_index and channel.queue:
                item, size, cost = channel.queue[0]
                if not 0 < size <= room or _are_combined(item) != combined:
                    break
                room -= size
                items.append(self._take(channel))
                grants += self._credit.on_consumed(index, cost)
            if not channel.queue:
                channel.ready = False
                self._round.remove(index)
        return grants

    def _rows_of(self, items: list[_Item], schema: pa.Schema | None) -> Batch:
        """Return the rows of several items of one input as one batch."""
        batches = []
        for item, _size, _cost in items:
            if isinstance(item, CombinedRows):
                batches.append(Batch(pa.ipc.read_record_batch(item.message, self._combined), combined=True))
            else:
                batches.append(item if isinstance(item, Batch) else Batch(pa.ipc.read_record_batch(item, schema)))
        rows = batches[0]
        if len(batches) > 1:
            rows = Batch(pa.concat_batches([batch.data for batch in batches]), combined=rows.combined)
        self.records_in += rows.num_rows
        return rows

    def restore(self, rows: Iterable[tuple[int, Batch]]) -> None:
        """Put rows of a restored checkpoint, each with its input, before everything that arrives."""
        first = {channel.input_index: index for index, channel in reversed(list(enumerate(self._channels)))}
        found = [(first[input_index], batch) for input_index, batch in rows]  # read from a store that may be slow
        with self._lock:
            self._restored.extend(found)

    def _take_restored(self) -> tuple[int, list[_Item]]:
        index, batch = self._restored.popleft()
        self.records_in += batch.num_rows
        return index, [(batch, 0, 0)]

    # --- barriers that overtake ---------------------------------------------------------------------------------------

    @property
    def has_barrier(self) -> bool:
        """Return whether `take_barrier` returns one."""
        return self._received is not None

    def take_barrier(self) -> Barrier | None:
        """Return the newest barrier that has arrived since the last call, wherever it is in its queue."""
        with self._lock:
            received, self._received = self._received, None
            return received

    def overtake(self, rows: OvertakenRows, passed: frozenset[int], unfed: Iterable[tuple[int, Batch]]) -> None:
        """Collect the rows before the barriers of a checkpoint, now and until the barriers have arrived.

        `passed`: channels whose barrier was read. `unfed`: rows that were read but not processed, with their input.
        """
        with self._lock:
            self._stop_collecting()
            self.collect(rows, unfed)
            for index, batch in self._restored:
                edge = self._channels[index].edge
                rows.received.append(QueuedRows(edge, None, batch, None))
            for index, channel in enumerate(self._channels):
                if index not in passed and not self._overtake(index, channel, rows):
                    channel.collects = rows
                    rows.missing.add(index)

    def collect(self, rows: OvertakenRows, unfed: Iterable[tuple[int, Batch]]) -> None:
        """Collect rows that were read but not processed, with their input."""
        edges = {channel.input_index: channel.edge for channel in self._channels}
        rows.received += [QueuedRows(edges[i], None, batch, None) for i, batch in unfed]

    def _overtake(self, index: int, channel: _Channel, rows: OvertakenRows) -> bool:
        """Collect the queued rows before the barrier, and drop the barrier; return whether it is there."""
        for place, (item, size, _cost) in enumerate(channel.queue):
            if size:
                rows.received.append(self._queued(channel, item))
            elif isinstance(item, Barrier) and item.checkpoint_id == rows.checkpoint_id:
                del channel.queue[place]
                if not channel.queue and channel.ready:
                    channel.ready = False
                    self._round.remove(index)
                return True
        return False

    def _queued(self, channel: _Channel, item: Any) -> QueuedRows:
        schema = self._combined if isinstance(item, CombinedRows) else channel.schema
        return QueuedRows(channel.edge, None, item, schema)

    def stop_collecting(self) -> None:
        """Collect no further rows: the checkpoint will never be complete."""
        with self._lock:
            self._stop_collecting()

    def _stop_collecting(self) -> None:
        for channel in self._channels:
            channel.collects = None

    def _on_barrier(self, index: int, barrier: Barrier) -> bool:
        """Handle an arrived barrier; return whether it ends the collection of its channel, and is done with."""
        channel = self._channels[index]
        rows = channel.collects
        if rows is not None and rows.checkpoint_id == barrier.checkpoint_id:
            channel.collects = None
            rows.missing.discard(index)
            return True
        if self._received is None or barrier.checkpoint_id > self._received.checkpoint_id:
            self._received = barrier
        return False

    # --- alignment ----------------------------------------------------------------------------------------------------

    def block(self, channel: int) -> None:
        """Stop polling `channel` (its barrier has arrived); it still fills up to its credit."""
        with self._lock:
            self._channels[channel].blocked = True
            if self._channels[channel].ready:
                self._channels[channel].ready = False
                self._round.remove(channel)

    def unblock(self, channel: int) -> None:
        """Poll `channel` again."""
        with self._lock:
            self._channels[channel].blocked = False
            wake = self._make_ready(channel)
        if wake:
            self._on_data()

    def input_index_of(self, channel: int) -> int:
        """Return the input of the head operator that `channel` belongs to."""
        return self._channels[channel].input_index

    @property
    def channel_count(self) -> int:
        """Return the number of channels over all inputs."""
        return len(self._channels)

    @property
    def has_data(self) -> bool:
        """Return whether `poll` would return an element or raise."""
        return bool(self._round) or bool(self._restored) or self._failure is not None

    @property
    def barrier_waiting(self) -> bool:
        """Return whether a barrier is in a channel that may be polled; used by tasks whose sink takes no rows."""
        with self._lock:
            return any(isinstance(item, Barrier) for c in self._channels if not c.blocked for item, _, _ in c.queue)

    def is_blocked(self, channel: int) -> bool:
        """Return whether `channel` waits for an alignment."""
        return self._channels[channel].blocked

    @property
    def window(self) -> int | None:
        """Return the bytes that may be in flight on each channel; None: they are not bounded by time."""
        return None if self._debloater is None else self._debloater.window

    @property
    def queued_ms(self) -> float:
        """Return the time that the queued rows will take, as far as it is measured."""
        rate = self._debloater.rate if self._debloater is not None else None
        return self.bytes_queued / rate if rate else 0.0

    @property
    def bytes_blocked(self) -> int:
        """Return the bytes in channels that wait for an alignment."""
        with self._lock:
            return sum(size for channel in self._channels if channel.blocked for _, size, _ in channel.queue)

    # --- carriers -----------------------------------------------------------------------------------------------------

    @property
    def channel_specs(self) -> tuple[InputChannelSpec, ...]:
        """Return the channels in flat order."""
        return tuple(channel.spec for channel in self._channels)

    def connect(self, channel: int, grant: Grant) -> None:
        """Set the function that grants credit to the sender of `channel`, and grant the exclusive credit.

        The first grant opens the channel.
        """
        with self._lock:
            self._channels[channel].grant = grant
            exclusive, window = self._credit.exclusive[channel], self._credit.window(channel)
        if window < exclusive:
            grant(exclusive, window)
        else:
            grant(exclusive)
        while (newest := self._credit.window(channel)) != window:  # resized since, and perhaps announced before
            window = newest
            grant(0, window)

    def receive(self, channel: int, element: Outgoing) -> None:
        """Queue what has arrived on `channel`.

        Raises:
            RuntimeError: an element is missing, or the sender overdrew its credit: the carrier is broken.
        """
        item, size, backlog, sequence = element
        with self._lock:
            if self._closed:
                return
            state = self._channels[channel]
            if sequence != state.next_sequence:
                raise RuntimeError(f"channel {state.spec.id}: element {sequence} instead of {state.next_sequence}")
            state.next_sequence += 1
            calls: list[Callable[[], None]] = []
            queue, wake = state.queue, False
            if size:
                cost = self._credit.cost(channel, size)
                granted = self._credit.on_data(channel, cost, backlog)
                if granted:
                    calls = self._callbacks([(channel, granted)])
                queue.append((item, size, cost))
                self.bytes_queued += size
                if state.collects is not None:
                    state.collects.received.append(self._queued(state, item))
            elif isinstance(item, Watermark) and queue and isinstance(queue[-1][0], Watermark):
                queue[-1] = (item, 0, 0)
            elif self.overtakes and isinstance(item, Barrier):
                wake = True  # also a task that reads nothing now
                if not self._on_barrier(channel, item):
                    queue.append((item, 0, 0))
            else:
                state.end_received = state.end_received or isinstance(item, EndOfInput)
                queue.append((item, 0, 0))
            wake |= self._make_ready(channel)
        for call in calls:
            call()
        if wake:
            self._on_data()

    def fail(self, reason: str) -> bool:
        """Fail the gate as the carrier of a channel is gone; return whether elements may be lost."""
        with self._lock:
            if self._closed:
                return False
            # After the end of input too: the barriers of the last checkpoints still have to arrive on this channel.
            self._failure = self._failure or reason
        self._on_data()
        return True

    def close(self) -> None:
        """Drop everything; elements that still arrive are ignored."""
        with self._lock:
            self._closed = True
            self._round.clear()
            self._restored.clear()
            self.bytes_queued = 0
            for channel in self._channels:
                channel.queue.clear()
                channel.ready = False

    def finished(self, channel: int) -> bool:
        """Return whether the end of input has arrived on `channel`."""
        return self._channels[channel].end_received

    # --- network memory -----------------------------------------------------------------------------------------------

    @property
    def want(self) -> GateWant:
        """Return the network memory that the gate uses if there is enough."""
        return self._want

    def resize(self, share: GateShare) -> None:
        """Change the bound of the gate's memory, from any thread; see `keeps_to_share`."""
        with self._lock:
            before, self._share = self._share, share
            grants: list[tuple[int, ...]] = list(self._credit.share(share.floating))
            if share.window != before.window:
                most = self._most_bytes()
                grants += self._credit.resize(most if self._debloater is None else self._debloater.limit(most))
            calls = self._callbacks(grants)
        for call in calls:
            call()

    @property
    def keeps_to_share(self) -> bool:
        """Return whether the gate is within its newest share: rows above a smaller one are consumed first."""
        with self._lock:
            return self._credit.floating_free >= 0 and self.bytes_queued <= self._credit.bound

    def _most_bytes(self) -> int:
        """Return the most bytes in flight on a channel."""
        most, window = max(self._want.exclusive, default=1), self._share.window
        return most if window is None else min(most, window)

    def _make_ready(self, channel: int) -> bool:
        """Put the channel into the round if it has an element; return whether the task must be woken."""
        state = self._channels[channel]
        if state.ready or state.blocked or not state.queue:
            return False
        state.ready = True
        self._round.append(channel)
        return len(self._round) == 1

    def _callbacks(self, grants: Iterable[tuple[int, ...]]) -> list[Callable[[], None]]:
        """Return the calls for grants, each with its channel and the arguments of `Grant`."""
        found = ((self._channels[channel].grant, arguments) for channel, *arguments in grants)
        return [partial(grant, *arguments) for grant, arguments in found if grant is not None]


def _are_combined(rows: Any) -> bool:
    """Return whether rows are partial aggregates, which have other columns."""
    return isinstance(rows, CombinedRows) or (isinstance(rows, Batch) and rows.combined)
