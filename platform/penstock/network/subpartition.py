"""One outgoing channel: small slices are merged, watermarks wait after rows, the queue is bounded in bytes.

The producer is the subtask's thread, the consumer is the carrier of the channel. A lost receiver raises
`ConnectionLostError`.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from penstock.core.elements import Barrier, Batch, EndOfInput, Watermark, WatermarkStatus
from penstock.core.errors import PenstockError
from penstock.network.credit import SenderCredit

if TYPE_CHECKING:
    from penstock.network.frame import Event


class ConnectionLostError(PenstockError):
    """The other end of a channel is gone; the task must fail, rows may be lost on the way."""


#: More pending watermarks and status changes than this are flushed: a bound above which waiting saves nothing.
_MAX_PENDING_EVENTS = 4
#: Deadlines are on a grid of this fraction of the buffer time-out, so that waiting data of a worker leaves together.
_GRID_FRACTION = 0.25
#: Data that arrives after a quiet buffer time-out waits for more data for this fraction of it, at most this long.
_GATHER_FRACTION, _MAX_GATHER_MS = 0.05, 5.0
#: Rows of this many bytes, or of half a buffer, leave at once: waiting for more would only add a copy.
_FLUSH_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class ChannelLimits:
    """Bounds of one outgoing channel, from the job's settings."""

    buffer_size_bytes: int
    #: 0: no waiting.
    buffer_timeout_ms: int
    #: Exclusive credit of the receiver, and the bytes that may queue here before the producer has to stop.
    exclusive_bytes: int

    def due_ms(self, now_ms: float, last_flush_ms: float) -> float:
        """Return the deadline of data that is added now, if data that was due last left at `last_flush_ms`.

        Messages leave once per buffer time-out, on the grid. Data that comes later than that after the last message
        leaves nearly at once: it would gain nothing by waiting.
        """
        timeout = self.buffer_timeout_ms
        if not timeout:
            return now_ms
        grid = timeout * _GRID_FRACTION
        gathered = now_ms + min(timeout * _GATHER_FRACTION, _MAX_GATHER_MS)
        return max(gathered, (last_flush_ms + timeout) // grid * grid)


class PartitionBackpressure:
    """Lock and back-pressure state shared by the channels of one partition."""

    def __init__(self, on_available: Callable[[], None] | None = None) -> None:
        """Take `on_available`, called without the lock when the last channel over its bound falls below it."""
        self.lock = threading.Lock()
        self.channels_over_limit = 0
        self.on_available = on_available

    @property
    def available(self) -> bool:
        """Return whether no channel is over its bound."""
        return self.channels_over_limit == 0


class CombinedRows(NamedTuple):
    """Encoded rows that were combined for their receiver."""

    message: pa.Buffer


class Outgoing(NamedTuple):
    """An element from `poll`: rows (encoded for the wire, a batch for a local gate) or an event."""

    item: Batch | pa.Buffer | CombinedRows | Event
    #: Bytes of rows; 0 for events.
    size: int
    #: Bytes still queued after it.
    backlog: int
    #: Number of this element in its channel, from 0.
    sequence: int

    @property
    def is_data(self) -> bool:
        """Return whether it carries rows."""
        return self.size > 0


class Subpartition:
    """The queue of one channel."""

    def __init__(self, limits: ChannelLimits, budget: PartitionBackpressure) -> None:
        """Start closed: nothing leaves before the receiver's first grant."""
        self._limits = limits
        self._budget = budget
        self._rows: list[pa.RecordBatch] = []
        self._rows_bytes = 0
        #: Whether the waiting rows were combined: both kinds never share a message.
        self._combined = False
        self._pending: list[Watermark | WatermarkStatus] = []
        #: Monotonic milliseconds at which pending data must leave; None if there is none.
        self.deadline_ms: float | None = None
        self._queue: deque[tuple[Any, int]] = deque()
        self._queued_bytes = 0
        self._over = False
        self._credit = SenderCredit(limits.exclusive_bytes)
        self._open = False
        self._scheduled = False
        self._sequence = 0
        self._on_ready: Callable[[], None] | None = None
        self._encode: Callable[[pa.RecordBatch], pa.Buffer] | None = None
        self._failure: str | None = None
        self._closed = False
        #: A barrier in the queue, and what to call when it has left.
        self._watched: tuple[Barrier, Callable[[], None]] | None = None
        #: Whether the end of input was put in.
        self.ended = False

    # --- producer -----------------------------------------------------------------------------------------------------

    def add_rows(self, rows: pa.RecordBatch, size: int, due_ms: float, *, combined: bool = False) -> None:
        """Take rows of about `size` bytes; they leave when large enough, when due, or with a barrier."""
        self._check()
        limit = self._message_bytes()
        other_kind = self._rows and self._combined != combined
        if other_kind or self._rows_bytes + size > limit or (self._pending and not self._only_watermark_pending()):
            self.flush()  # rows may go before a pending watermark, never before a pending status
        self._combined = combined
        self._rows.append(rows)
        self._rows_bytes += size
        self._due(due_ms)
        if self._rows_bytes >= min(_FLUSH_BYTES, limit // 2) or self._limits.buffer_timeout_ms == 0:
            self.flush()

    def add_event(self, event: Watermark | WatermarkStatus, due_ms: float) -> None:
        """Take a watermark or status: it waits after the rows and replaces one of its kind directly before it."""
        self._check()
        if self._pending and type(self._pending[-1]) is type(event):
            self._pending[-1] = event
        else:
            self._pending.append(event)
        self._due(due_ms)
        if self._limits.buffer_timeout_ms == 0 or len(self._pending) > _MAX_PENDING_EVENTS:
            self.flush()

    def add_barrier(self, barrier: Barrier, on_left: Callable[[], None] | None = None) -> None:
        """Flush and take a barrier; after the end of input it is dropped if the receiver has left.

        `on_left`: called without the lock when the barrier has left, unless `overtake_waiting` finds it before.
        """
        if self.ended and self._failure is not None:
            if on_left is not None:
                on_left()
            return
        self._check()
        self.flush()
        if on_left is not None:
            with self._budget.lock:  # the carrier may be sending an earlier barrier, and would forget this one
                self._watched = (barrier, on_left)
        self._enqueue([(barrier, 0)])

    def overtake(self, barrier: Barrier) -> list[tuple[Any, int]]:
        """Flush and take a barrier that leaves before everything in the queue; return the queued rows."""
        if self.ended and self._failure is not None:
            return []
        self._check()
        self.flush()
        with self._budget.lock:
            rows = [entry for entry in self._queue if entry[1]]
            self._queue.appendleft((barrier, 0))
            call = self._schedule()
        if call is not None:
            call()
        return rows

    def overtake_waiting(self) -> list[tuple[Any, int]] | None:
        """Let a barrier leave first that was put in with `on_left`; return the rows before it, None if it has left."""
        with self._budget.lock:
            if self._watched is None:
                return None
            barrier, self._watched = self._watched[0], None
            place = next((place for place, entry in enumerate(self._queue) if entry[0] is barrier), None)
            if place is None:
                return None
            rows = [entry for entry in itertools.islice(self._queue, place) if entry[1]]
            del self._queue[place]
            self._queue.appendleft((barrier, 0))
            call = self._schedule()
        if call is not None:
            call()
        return rows

    def add_end(self) -> None:
        """Flush and take the end of input."""
        self._check()
        self.flush()
        self.ended = True
        self._enqueue([(EndOfInput(), 0)])

    def flush(self) -> None:
        """Move pending rows, then pending events, into the queue."""
        self.deadline_ms = None
        entries: list[tuple[Any, int]] = []
        if self._rows:
            rows = self._rows[0] if len(self._rows) == 1 else pa.concat_batches(self._rows)
            size, self._rows, self._rows_bytes = self._rows_bytes, [], 0
            entries = [self._entry(part, size * part.num_rows // rows.num_rows) for part in self._slices(rows, size)]
        if self._pending:
            entries += [(event, 0) for event in self._pending]
            self._pending = []
        if entries:
            self._enqueue(entries)

    def _due(self, due_ms: float) -> None:
        if self.deadline_ms is None:
            self.deadline_ms = due_ms

    def _only_watermark_pending(self) -> bool:
        return len(self._pending) == 1 and isinstance(self._pending[0], Watermark)

    def _message_bytes(self) -> int:
        """Return the size of a message: a buffer, or a quarter of a window, so that several are in flight."""
        limits, window = self._limits, self._credit.window
        return limits.buffer_size_bytes if window >= limits.exclusive_bytes else max(1, window // 4)

    def _slices(self, rows: pa.RecordBatch, size: int) -> list[pa.RecordBatch]:
        count = min(-(-size // self._message_bytes()), rows.num_rows)
        if count <= 1:
            return [rows]
        step = -(-rows.num_rows // count)
        return [rows.slice(start, step) for start in range(0, rows.num_rows, step)]

    def _entry(self, rows: pa.RecordBatch, size: int) -> tuple[Any, int]:
        if self._encode is None:
            return Batch(rows, self._combined), max(1, size)
        message = self._encode(rows)
        return CombinedRows(message) if self._combined else message, message.size

    def _enqueue(self, entries: list[tuple[Any, int]]) -> None:
        with self._budget.lock:
            queue = self._queue
            for item, size in entries:
                if queue and isinstance(item, Watermark) and isinstance(queue[-1][0], Watermark):
                    queue[-1] = (item, 0)
                else:
                    queue.append((item, size))
                    self._queued_bytes += size
            self._mark_over()
            call = self._schedule()
        if call is not None:
            call()

    def _check(self) -> None:
        if self._failure is not None:
            raise ConnectionLostError(self._failure)
        if self._closed:
            raise ConnectionLostError("the channel was released")

    # --- consumer -----------------------------------------------------------------------------------------------------

    def encode_with(self, encode: Callable[[pa.RecordBatch], pa.Buffer]) -> None:
        """Send rows as encoded messages (a remote channel); call it before the first row."""
        self._encode = encode

    def attach(self, on_ready: Callable[[], None]) -> None:
        """Set the carrier's callback `on_ready`, called without the lock when there is an element to poll again."""
        with self._budget.lock:
            self._on_ready = on_ready
            call = self._schedule()
        if call is not None:
            call()

    def grant(self, amount: int, window: int = 0) -> None:
        """Take credit from the receiver, and its window if that changes; the first grant opens the channel."""
        relieved = False
        with self._budget.lock:
            self._open = True
            self._credit.grant(amount)
            if window:
                self._credit.window = window
                relieved = self._unmark_over()
                self._mark_over()
            call = self._schedule()
        if relieved and self._budget.on_available is not None:
            self._budget.on_available()
        if call is not None:
            call()

    def poll(self) -> Outgoing | None:
        """Return the next element, paid for; None if empty or out of credit (`on_ready` will be called)."""
        budget = self._budget
        with budget.lock:
            if not self._sendable():
                self._scheduled = False
                return None
            item, size = self._queue.popleft()
            if size:
                self._credit.spend(size)
                self._queued_bytes -= size
                watched = None
            else:
                watched = self._left(item)
            relieved = self._unmark_over()
            sequence = self._sequence
            self._sequence = sequence + 1
            outgoing = Outgoing(item, size, self._queued_bytes, sequence)
        if relieved and budget.on_available is not None:
            budget.on_available()
        if watched is not None:
            watched()
        return outgoing

    def _left(self, event: Any) -> Callable[[], None] | None:
        """Return what to call as an event has left."""
        if self._watched is None or self._watched[0] is not event:
            return None
        call, self._watched = self._watched[1], None
        return call

    def fail(self, reason: str) -> bool:
        """Drop the queue as the receiver is gone, and raise at the producer's next call.

        Return whether rows are lost.
        """
        with self._budget.lock:
            if self._closed or self._failure is not None or (self.ended and not self._queue):
                self._failure = self._failure or reason
                return False
            self._failure = reason
            self._drop()
        if self._budget.on_available is not None:
            self._budget.on_available()
        return True

    def close(self) -> None:
        """Drop everything; the channel takes and returns nothing from now on."""
        with self._budget.lock:
            self._closed = True
            self._drop()

    @property
    def drained(self) -> bool:
        """Return whether the end of input was put in and everything has left."""
        return self.ended and not self._queue

    @property
    def room_bytes(self) -> int | None:
        """Return the bytes that may queue here until the window of the receiver is full; None without a window."""
        window = self._credit.window
        return None if window >= self._limits.exclusive_bytes else max(0, window - self.queued_bytes)

    @property
    def queued_bytes(self) -> int:
        """Return the bytes of rows waiting in the queue and the builder."""
        return self._queued_bytes + self._rows_bytes

    def _sendable(self) -> bool:
        if not (self._open and self._queue):
            return False
        return self._credit.covers(self._queue[0][1])  # events cost nothing

    def _schedule(self) -> Callable[[], None] | None:
        if self._scheduled or self._on_ready is None or not self._sendable():
            return None
        self._scheduled = True
        return self._on_ready

    def _drop(self) -> None:
        self._queue.clear()
        self._queued_bytes = 0
        self._unmark_over()

    def _mark_over(self) -> None:
        if not self._over and self._queued_bytes >= self._credit.window:
            self._over = True
            self._budget.channels_over_limit += 1

    def _unmark_over(self) -> bool:
        if self._over and self._queued_bytes < self._credit.window:
            self._over = False
            self._budget.channels_over_limit -= 1
            return self._budget.channels_over_limit == 0
        return False
