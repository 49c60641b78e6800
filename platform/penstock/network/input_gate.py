"""The incoming side of one subtask: a queue a channel, fair polling, credit, and blocking for alignment.

Carriers (`local`, `session`) call `connect`, `receive` and `fail` from any thread; the subtask's thread calls `poll`,
`block`, `unblock`. `on_data` tells the task that `poll` may return something after it has returned None.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.core.elements import Barrier, Batch, EndOfInput, StreamElement, Watermark
from penstock.core.schema import schema_from_text
from penstock.network.credit import GateCredit
from penstock.network.data_plane import ConnectionLostError
from penstock.network.output import exclusive_bytes
from penstock.network.subpartition import CombinedRows

if TYPE_CHECKING:
    from penstock.config.settings import JobSettings
    from penstock.graph.deployment import InputChannelSpec, InputSpec
    from penstock.network.subpartition import Outgoing

_Grants = list[tuple[Callable[[int], None], int]]


@dataclass(slots=True)
class _Channel:
    spec: InputChannelSpec
    input_index: int
    schema: pa.Schema | None
    queue: deque[tuple[Any, int, int]] = field(default_factory=deque)
    blocked: bool = False
    #: Whether it stands in the round of channels to poll.
    ready: bool = False
    #: The end of input has arrived; only barriers follow.
    end_received: bool = False
    next_sequence: int = 0
    grant: Callable[[int], None] | None = None


class InputGate:
    """All incoming channels of one subtask."""

    def __init__(self, inputs: tuple[InputSpec, ...], settings: JobSettings, on_data: Callable[[], None]) -> None:
        """Channels are numbered flat, in the order of `inputs` and of their channels."""
        self._channels: list[_Channel] = []
        for spec in inputs:
            schema = schema_from_text(spec.schema) if spec.schema else None
            self._channels += [_Channel(channel, spec.input_index, schema) for channel in spec.channels]
        exclusive = [exclusive_bytes(settings, spec.width) for spec in inputs for _ in spec.channels]
        floating = max(0, settings.floating_buffers) * max(1, settings.buffer_size_bytes)
        self._credit = GateCredit(exclusive, floating)
        self._on_data = on_data
        self._lock = threading.Lock()
        self._round: deque[int] = deque()
        self._combined: pa.Schema | None = None
        self._failure: str | None = None
        self._closed = False
        self.bytes_queued = 0
        #: Rows and bytes handed to the task (Flink's numRecordsIn, numBytesIn).
        self.records_in = 0
        self.bytes_in = 0

    # --- task ---------------------------------------------------------------------------------------------------------

    def expect_combined(self, schema: pa.Schema) -> None:
        """Say what columns combined rows have; before the first `poll`."""
        self._combined = schema

    def poll(self) -> tuple[int, StreamElement] | None:
        """Return the next element of some channel, all channels in turn; None: wait for `on_data`.

        Raises:
            ConnectionLostError: a sender is gone before its end of input.
        """
        with self._lock:
            if self._failure is not None:
                raise ConnectionLostError(self._failure)
            if not self._round:
                return None
            index = self._round.popleft()
            channel = self._channels[index]
            item, size, cost = channel.queue.popleft()
            if channel.queue:
                self._round.append(index)
            else:
                channel.ready = False
            grants: _Grants = []
            if size:
                self.bytes_queued -= size
                grants = self._callbacks(self._credit.on_consumed(index, cost))
            elif isinstance(item, EndOfInput):
                grants = self._callbacks(self._credit.on_ended(index))
        for grant, amount in grants:
            grant(amount)
        if size:
            self.bytes_in += size
            if isinstance(item, CombinedRows):
                item = Batch(pa.ipc.read_record_batch(item.message, self._combined), combined=True)
            elif not isinstance(item, Batch):
                item = Batch(pa.ipc.read_record_batch(item, channel.schema))
            self.records_in += item.num_rows
        return index, item

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
        """Number of channels over all inputs."""
        return len(self._channels)

    @property
    def has_data(self) -> bool:
        """Whether `poll` would return something (or raise)."""
        return bool(self._round) or self._failure is not None

    @property
    def barrier_waiting(self) -> bool:
        """Whether a barrier stands in a channel that may be polled; only tasks whose sink takes no rows ask."""
        with self._lock:
            return any(isinstance(item, Barrier) for c in self._channels if not c.blocked for item, _, _ in c.queue)

    def is_blocked(self, channel: int) -> bool:
        """Whether `channel` waits for an alignment."""
        return self._channels[channel].blocked

    @property
    def bytes_blocked(self) -> int:
        """Bytes that lie in channels which wait for an alignment."""
        with self._lock:
            return sum(size for channel in self._channels if channel.blocked for _, size, _ in channel.queue)

    # --- carriers -----------------------------------------------------------------------------------------------------

    @property
    def channel_specs(self) -> tuple[InputChannelSpec, ...]:
        """The channels in flat order."""
        return tuple(channel.spec for channel in self._channels)

    def connect(self, channel: int, grant: Callable[[int], None]) -> None:
        """Name the way back to the sender of `channel` and grant its exclusive credit, which opens it."""
        self._channels[channel].grant = grant
        grant(self._credit.exclusive[channel])

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
            grants: _Grants = []
            queue = state.queue
            if size:
                cost = self._credit.cost(channel, size)
                granted = self._credit.on_data(channel, cost, backlog)
                if granted:
                    grants = self._callbacks([(channel, granted)])
                queue.append((item, size, cost))
                self.bytes_queued += size
            elif isinstance(item, Watermark) and queue and isinstance(queue[-1][0], Watermark):
                queue[-1] = (item, 0, 0)
            else:
                state.end_received = state.end_received or isinstance(item, EndOfInput)
                queue.append((item, 0, 0))
            wake = self._make_ready(channel)
        for grant, amount in grants:
            grant(amount)
        if wake:
            self._on_data()

    def fail(self, reason: str) -> bool:
        """The carrier of a channel is gone; return whether that can have lost anything."""
        with self._lock:
            if self._closed:
                return False
            # Behind the end of input too: the barriers of the last checkpoints still have to come this way.
            self._failure = self._failure or reason
        self._on_data()
        return True

    def close(self) -> None:
        """Drop everything; what still arrives is ignored."""
        with self._lock:
            self._closed = True
            self._round.clear()
            self.bytes_queued = 0
            for channel in self._channels:
                channel.queue.clear()
                channel.ready = False

    def finished(self, channel: int) -> bool:
        """Whether the end of input has arrived on `channel`."""
        return self._channels[channel].end_received

    def _make_ready(self, channel: int) -> bool:
        """Put the channel into the round if it has something; return whether the task must be told."""
        state = self._channels[channel]
        if state.ready or state.blocked or not state.queue:
            return False
        state.ready = True
        self._round.append(channel)
        return len(self._round) == 1

    def _callbacks(self, grants: list[tuple[int, int]]) -> _Grants:
        result: _Grants = []
        for channel, amount in grants:
            grant = self._channels[channel].grant
            if grant is not None:
                result.append((grant, amount))
        return result
