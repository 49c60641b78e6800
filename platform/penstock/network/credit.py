"""Credit-based flow control in bytes, both sides, pure: a sender spends what a receiver has granted.

A receiver returns credit once a quarter of a channel's exclusive bytes has been consumed, so that small messages share
one answer. The cost of a message is its size, at most the exclusive bytes less that quarter. So an empty channel can
always send one message of any size.

A receiver that bounds its in-flight rows by time announces a window (`debloater`). The sender then sends a message only
if the bytes in flight stay below the window, or if there are none. The receiver grants no floating bytes meanwhile, and
returns all credit of an empty channel: otherwise the sender would never see that nothing is in flight.

`subpartition` owns a `SenderCredit`, `input_gate` a `GateCredit`. Invariants: the floating bytes held by channels plus
those in the pool are constant; per channel, credit at the sender (or on its way) plus queued cost plus
unannounced credit equals exclusive plus floating bytes held.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.config.settings import JobSettings

#: Credit that the channels of a wide edge divide at each end: their number is the square of the parallelism.
EDGE_BYTES = 16 << 20
_MIN_EXCLUSIVE_BYTES = 64 << 10


def exclusive_bytes(settings: JobSettings, width: int = 1) -> int:
    """Return the exclusive credit of every channel of an edge, the same at both ends.

    `width`: the most channels of the edge that one subtask has (`OutputSpec.width`).
    """
    most = max(1, settings.exclusive_buffers) * max(1, settings.buffer_size_bytes)
    return min(most, max(EDGE_BYTES // max(1, width), _MIN_EXCLUSIVE_BYTES))


def _return_threshold(window: int) -> int:
    """Return the number of consumed bytes from which credit is returned."""
    return max(1, window // 4)


def _cost(size: int, exclusive: int) -> int:
    """Return the cost of a message, which a channel with an empty queue can always pay."""
    return min(size, exclusive - _return_threshold(exclusive) + 1)


class SenderCredit:
    """The credit of one channel at its sender."""

    __slots__ = ("_exclusive", "balance", "window")

    def __init__(self, exclusive: int) -> None:
        """Start without credit; the receiver's first grant opens the channel."""
        self._exclusive = exclusive
        self.balance = 0
        #: The bytes that may be in flight.
        self.window = exclusive

    def cost(self, size: int) -> int:
        """Return the cost of a message of `size` bytes."""
        return _cost(size, self._exclusive)

    def grant(self, amount: int) -> None:
        """Add credit from the receiver."""
        self.balance += amount

    def covers(self, size: int) -> bool:
        """Return whether a message of `size` bytes may be sent now."""
        cost = self.cost(size)
        if not cost or cost > self.balance:
            return not cost
        in_flight = self._exclusive - self.balance  # less the floating bytes, which a window takes back
        return self.window >= self._exclusive or in_flight <= 0 or in_flight + cost <= self.window

    def spend(self, size: int) -> int:
        """Pay for a message and return its cost.

        Raises:
            RuntimeError: not enough credit; the caller must call `covers` first.
        """
        cost = self.cost(size)
        if cost > self.balance:
            msg = f"credit would become negative: {self.balance} - {cost}"
            raise RuntimeError(msg)
        self.balance -= cost
        return cost


class GateCredit:
    """The credit that one gate has granted: exclusive bytes to each channel, floating bytes to those with a backlog."""

    def __init__(self, exclusive: Sequence[int], floating: int) -> None:
        """Grant `exclusive` bytes to each channel, and share `floating` bytes among all channels."""
        channels = len(exclusive)
        self.exclusive = tuple(exclusive)
        self.floating_total = floating
        self.floating_free = floating
        self.floating_held = [0] * channels
        self.outstanding = list(exclusive)
        self.queued = [0] * channels
        self.unannounced = [0] * channels
        self._backlog = [0] * channels
        self._waiting: deque[int] = deque()
        self._windows = list(exclusive)
        self._return_thresholds = [_return_threshold(own) for own in exclusive]

    def window(self, channel: int) -> int:
        """Return the bytes that may be in flight on `channel`, without its floating bytes."""
        return self._windows[channel]

    def resize(self, window: int) -> list[tuple[int, int, int]]:
        """Bound the bytes in flight of every channel; return (channel, bytes to grant, its window)."""
        announced = []
        for channel, exclusive in enumerate(self.exclusive):
            self._windows[channel] = min(window, exclusive)
            self._return_thresholds[channel] = _return_threshold(self._windows[channel])
            announced.append((channel, self._return_credit(channel), self._windows[channel]))
        return announced

    def share(self, floating: int) -> list[tuple[int, int]]:
        """Change the floating bytes of all channels; return (channel, bytes) to grant.

        Channels that hold more return them as their rows are consumed: `floating_free` is negative until then.
        """
        self.floating_free += floating - self.floating_total
        self.floating_total = floating
        return self._serve_waiting()

    @property
    def bound(self) -> int:
        """Return the most bytes that all channels may hold."""
        return sum(self._windows) + self.floating_total

    def cost(self, channel: int, size: int) -> int:
        """Return the cost of a message of `size` bytes, by the same rule as the sender."""
        return _cost(size, self.exclusive[channel])

    def on_data(self, channel: int, cost: int, backlog: int) -> int:
        """Record an arrived message; return floating credit to grant to its channel at once.

        Raises:
            RuntimeError: the sender spent more than it was granted.
        """
        if cost > self.outstanding[channel]:
            msg = f"channel {channel} sent {cost} bytes on {self.outstanding[channel]} bytes of credit"
            raise RuntimeError(msg)
        self.outstanding[channel] -= cost
        self.queued[channel] += cost
        self._backlog[channel] = backlog
        granted = self._take_floating(channel)
        self._wait_if_short(channel)
        return granted

    def on_consumed(self, channel: int, cost: int) -> list[tuple[int, int]]:
        """Record a consumed message; return (channel, bytes) to grant, the longest waiting channel first."""
        self.queued[channel] -= cost
        returned = min(cost, self.floating_held[channel])
        self.floating_held[channel] -= returned
        self.floating_free += returned
        self.unannounced[channel] += cost - returned
        self._wait_if_short(channel)
        grants = self._serve_waiting() if returned else []
        if amount := self._return_credit(channel):
            grants.append((channel, amount))
        return grants

    def _return_credit(self, channel: int) -> int:
        """Return the consumed bytes to announce, if they are enough."""
        empty = self._is_bounded(channel) and not self.queued[channel]
        if not empty and self.unannounced[channel] < self._return_thresholds[channel]:
            return 0
        amount, self.unannounced[channel] = self.unannounced[channel], 0
        self.outstanding[channel] += amount
        return amount

    def _is_bounded(self, channel: int) -> bool:
        return self._windows[channel] < self.exclusive[channel]

    def on_ended(self, channel: int) -> list[tuple[int, int]]:
        """Take back the unspent floating credit of `channel`, on which no rows follow, and grant it to others."""
        returned = max(0, self.floating_held[channel] - self.queued[channel])
        self.floating_held[channel] -= returned
        self.floating_free += returned
        self.outstanding[channel] -= min(returned, self.outstanding[channel])
        self._backlog[channel] = 0
        return self._serve_waiting()

    def _shortfall(self, channel: int) -> int:
        if self._is_bounded(channel):
            return 0
        return self._backlog[channel] - self.outstanding[channel] - self.unannounced[channel]

    def _take_floating(self, channel: int) -> int:
        taken = max(0, min(self._shortfall(channel), self.floating_free))
        self.floating_free -= taken
        self.floating_held[channel] += taken
        self.outstanding[channel] += taken
        return taken

    def _wait_if_short(self, channel: int) -> None:
        if self._shortfall(channel) > 0 and channel not in self._waiting:
            self._waiting.append(channel)

    def _serve_waiting(self) -> list[tuple[int, int]]:
        grants: list[tuple[int, int]] = []
        while self.floating_free > 0 and self._waiting:
            channel = self._waiting.popleft()
            taken = self._take_floating(channel)
            if taken:
                grants.append((channel, taken))
            self._wait_if_short(channel)  # at the end of the round: the others are served before it gets more
        return grants
