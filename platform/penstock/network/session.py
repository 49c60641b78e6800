"""All channels to one peer, multiplexed: the next frame to send, the receiver of an arrived message; no I/O.

`connection` moves its frames over a socket, `simulated_network` over a simulated link. `attach_*`, `detach`,
`dispatch`, `next_frames` and `fail` belong to one thread (the network's). Callbacks of subpartitions and gates (ready,
grant) may come from any thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.network.frame import (
    NO_CHANNEL,
    ChannelKey,
    FrameError,
    FrameKind,
    Message,
    OutgoingMessage,
    decode_event,
    encode_event,
    encode_message,
)
from penstock.network.subpartition import CombinedRows, Outgoing

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from penstock.network.input_gate import InputGate
    from penstock.network.subpartition import Subpartition

#: Most channels whose credit may arrive before their subtask is deployed here; more is an error.
_MAX_EARLY = 65_536
_REASON_BYTES = 500


class _Sender:
    """One outgoing channel of the session."""

    __slots__ = ("current", "key", "leaving", "source")

    def __init__(self, key: ChannelKey, source: Subpartition) -> None:
        self.key = key
        self.source = source
        self.current: OutgoingMessage | None = None
        #: Released, but its last elements still have to be delivered.
        self.leaving = False


class Session:
    """The channels between this worker and `peer`."""

    def __init__(self, peer: str, notify: Callable[[Session], None]) -> None:
        """Take `notify`, called from any thread when there is output that the owner does not know of."""
        self.peer = peer
        self._notify = notify
        self._dirty = False
        self._senders: dict[ChannelKey, _Sender] = {}
        self._inputs: dict[ChannelKey, tuple[InputGate, int]] = {}
        self._control: deque[bytes] = deque()
        self._credits: deque[tuple[ChannelKey, int, int]] = deque()
        self._active: deque[_Sender] = deque()
        #: Messages for outputs that are not attached so far: credit and window, or why the channel is closed already.
        self._early: dict[ChannelKey, tuple[int, int] | str] = {}
        #: Newest released epoch by job: messages of it and of older ones are dropped.
        self._released: dict[int, int] = {}
        #: Messages for channels that no longer exist here.
        self.dropped = 0

    # --- channels -----------------------------------------------------------------------------------------------------

    def attach_output(self, key: ChannelKey, source: Subpartition) -> None:
        """Carry `source` to the peer."""
        sender = self._senders[key] = _Sender(key, source)
        source.attach(partial(self._ready, sender))
        early = self._early.pop(key, None)
        if isinstance(early, str):
            del self._senders[key]
            source.fail(early)
        elif early is not None:
            source.grant(*early)

    def attach_input(self, key: ChannelKey, gate: InputGate, channel: int) -> None:
        """Deliver messages for `key` to `channel` of `gate`, and open it by granting its credit."""
        self._inputs[key] = (gate, channel)
        gate.connect(channel, partial(self._grant, key))

    def detach(self, keys: Iterable[ChannelKey]) -> None:
        """Forget channels; the peer is notified of those that had not ended."""
        for key in keys:
            self._released[key.job] = max(key.epoch, self._released.get(key.job, -1))
            self._early.pop(key, None)
            entry = self._inputs.pop(key, None)
            if entry is not None and not entry[0].finished(entry[1]):
                self._reset(key, "the receiver was released")
            sender = self._senders.get(key)
            if sender is None:
                continue
            if sender.source.ended and not sender.source.drained:
                sender.leaving = True  # the queue, including its end, still has to reach the receiver
                continue
            del self._senders[key]
            if not sender.source.ended:
                self._reset(key, "the sender was released before its end of input")

    @property
    def channel_count(self) -> int:
        """Return the number of attached channels, both ways."""
        return len(self._senders) + len(self._inputs)

    def fail(self, reason: str) -> bool:
        """Fail all channels as the peer is gone; return whether elements may be lost."""
        lost = False
        for sender in self._senders.values():
            lost = sender.source.fail(reason) or lost
        for gate, _channel in self._inputs.values():
            lost = gate.fail(reason) or lost
        self._senders.clear()
        self._inputs.clear()
        self._active.clear()
        return lost

    # --- out ----------------------------------------------------------------------------------------------------------

    def next_frames(self, wanted_bytes: int, limit: int = 0) -> list[Buffer]:
        """Return buffers to send, about `wanted_bytes` of them: control first, then one frame per channel in turn."""
        self._dirty = False
        frames: list[Buffer] = []
        total = self._take_control(frames)
        while total < wanted_bytes:
            try:
                sender = self._active.popleft()
            except IndexError:
                break
            message = sender.current or self._next_message(sender)
            if message is None:
                continue
            frame = message.next_frame(limit) if limit else message.next_frame()
            frames += frame
            total += sum(len(memoryview(buffer)) for buffer in frame)
            sender.current = None if message.done else message
            self._active.append(sender)
        return frames

    @property
    def has_output(self) -> bool:
        """Return whether `next_frames` may return buffers."""
        return bool(self._control or self._credits or self._active)

    def _take_control(self, frames: list[Buffer]) -> int:
        start = len(frames)
        while self._control:
            frames.append(self._control.popleft())
        grants: dict[ChannelKey, tuple[int, int]] = {}
        while self._credits:
            key, amount, window = self._credits.popleft()
            grants[key] = _added(grants.get(key), amount, window)
        for key, (amount, window) in grants.items():
            frames.append(encode_message(FrameKind.CREDIT, key, sequence=window, backlog=amount))
        return sum(len(memoryview(buffer)) for buffer in frames[start:])

    def _next_message(self, sender: _Sender) -> OutgoingMessage | None:
        element = sender.source.poll()
        if element is None:
            if sender.leaving and sender.source.drained:
                self._senders.pop(sender.key, None)
            return None
        if element.is_data:
            kind, rows = FrameKind.DATA, element.item
            if isinstance(rows, CombinedRows):
                kind, rows = FrameKind.COMBINED, rows.message
            payload = memoryview(rows).cast("B")  # type: ignore[arg-type]  # a remote channel encodes its rows
            return OutgoingMessage(kind, sender.key, element.sequence, element.backlog, payload)
        payload = memoryview(encode_event(element.item))  # type: ignore[arg-type]  # what is not data is an event
        return OutgoingMessage(FrameKind.EVENT, sender.key, element.sequence, element.backlog, payload)

    def _ready(self, sender: _Sender) -> None:
        self._active.append(sender)
        self._changed()

    def _grant(self, key: ChannelKey, amount: int, window: int = 0) -> None:
        self._credits.append((key, amount, window))
        self._changed()

    def _reset(self, key: ChannelKey, reason: str) -> None:
        self._control.append(encode_message(FrameKind.RESET, key, payload=reason.encode()[:_REASON_BYTES]))
        self._changed()

    def _changed(self) -> None:
        if not self._dirty:
            self._dirty = True
            self._notify(self)

    # --- in -----------------------------------------------------------------------------------------------------------

    def dispatch(self, message: Message) -> None:
        """Deliver one arrived message.

        Raises:
            FrameError: it breaks the protocol, or the peer refuses the connection.
        """
        kind, key = message.kind, message.key
        if kind in (FrameKind.DATA, FrameKind.COMBINED, FrameKind.EVENT):
            self._dispatch_element(message)
        elif kind is FrameKind.CREDIT:
            self._dispatch_credit(key, message.backlog, message.sequence)
        elif kind is FrameKind.RESET:
            reason = bytes(memoryview(message.payload)).decode(errors="replace")
            if key == NO_CHANNEL:
                raise FrameError(f"worker {self.peer} closed the connection: {reason}")
            self._dispatch_reset(key, f"worker {self.peer}: {reason}")
        else:
            raise FrameError(f"worker {self.peer} sent a second hello")

    def _dispatch_element(self, message: Message) -> None:
        entry = self._inputs.get(message.key)
        if entry is None:
            self.dropped += 1
            return
        gate, channel = entry
        if message.kind is FrameKind.EVENT:
            element = Outgoing(decode_event(message.payload), 0, message.backlog, message.sequence)
        else:
            rows = pa.py_buffer(message.payload)
            item = CombinedRows(rows) if message.kind is FrameKind.COMBINED else rows
            element = Outgoing(item, message.size, message.backlog, message.sequence)
        try:
            gate.receive(channel, element)
        except RuntimeError as error:
            raise FrameError(f"worker {self.peer}: {error}") from error

    def _dispatch_credit(self, key: ChannelKey, amount: int, window: int) -> None:
        sender = self._senders.get(key)
        if sender is not None:
            sender.source.grant(amount, window)
            return
        early = self._early.get(key)
        if key.epoch <= self._released.get(key.job, -1) or isinstance(early, str):
            self.dropped += 1
            return
        if len(self._early) >= _MAX_EARLY:
            raise FrameError(
                f"worker {self.peer} grants credit to more than {_MAX_EARLY} channels that are unknown here"
            )
        self._early[key] = _added(early, amount, window)

    def _dispatch_reset(self, key: ChannelKey, reason: str) -> None:
        sender = self._senders.pop(key, None)
        if sender is not None:
            sender.source.fail(reason)
            return
        entry = self._inputs.pop(key, None)
        if entry is not None:
            entry[0].fail(reason)
        elif key.epoch > self._released.get(key.job, -1) and len(self._early) < _MAX_EARLY:
            self._early[key] = reason


def _added(credit: tuple[int, int] | None, amount: int, window: int) -> tuple[int, int]:
    """Return the sum of two messages of credit; the newest window counts, 0 is none."""
    before, older = credit or (0, 0)
    return before + amount, window or older
