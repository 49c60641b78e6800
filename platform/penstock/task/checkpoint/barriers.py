"""Barriers in a subtask: alignment of its channels, then the snapshot of the subtask; kept by `task.drive.subtask`.

A drain's snapshot waits until no operator holds rows, such as those with running calls of an asynchronous function. The
wait does not block: the subtask continues with its mails, and other subtasks of the thread with their rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.checkpoint.alignment import Abort, Alignment, AlignmentCommand, Block, Snapshot, Unblock
from penstock.core.elements import Barrier, BarrierKind
from penstock.task.checkpoint.announced import AnnouncedBarrier

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock
    from penstock.network.input_gate import InputGate
    from penstock.task.chain.chain import Chain
    from penstock.task.chain.task_reports import TaskReports


@dataclass(frozen=True, slots=True)
class Aligned:
    """Measurements from the first barrier of a checkpoint to the snapshot."""

    ms: float
    #: Bytes processed from the channels whose barrier had not arrived.
    processed_bytes: int
    #: Bytes in the channels whose barrier had arrived, when the last one did.
    buffered_bytes: int


@dataclass(frozen=True, slots=True)
class _Waiting:
    """The subtask's state when the first barrier arrived."""

    since_ms: float
    bytes_in: int


class Barriers:
    """Processing of a checkpoint from its first barrier to the snapshot; times are monotonic milliseconds."""

    def __init__(self, gate: InputGate | None, chain: Chain, clock: Clock, reports: TaskReports) -> None:
        """Start without a checkpoint; `gate` is None for a source, where barriers begin."""
        self._gate = gate
        self._chain = chain
        self._clock = clock
        self._reports = reports
        self.alignment = Alignment(0 if gate is None else gate.channel_count)
        self._announced = AnnouncedBarrier()
        #: State at the first barrier of the running checkpoint.
        self._waiting: _Waiting | None = None
        #: A drain that waits for operators with rows: its barrier, its start, and bytes processed and buffered.
        self._draining: tuple[Barrier, float, tuple[int, int]] | None = None
        #: Takes the snapshot of the subtask and sends the barrier on.
        self.cut: Callable[[Barrier, Aligned], None]

    @property
    def coming(self) -> bool:
        """Whether a barrier was announced, or waits for other channels or for rows."""
        if self._gate is None:
            return False
        return self.alignment.running is not None or self._announced.coming or self._gate.barrier_waiting

    @property
    def draining(self) -> bool:
        """Whether the last barrier waits for operators that hold rows."""
        return self._draining is not None

    def announce(self, checkpoint_id: int) -> None:
        """Announce a barrier that is on its way."""
        self._announced.announce(checkpoint_id)

    def begin(self, barrier: Barrier) -> None:
        """Start with a barrier that begins in this subtask."""
        self._complete(barrier)

    def came(self, channel: int, barrier: Barrier) -> None:
        """Handle a barrier of a channel."""
        if self._waiting is None:
            self._waiting = self._now()
        self._execute(self.alignment.on_barrier(channel, barrier))

    def ended(self, channel: int) -> None:
        """Handle the end of a channel."""
        self._execute(self.alignment.on_end_of_input(channel))

    def aborted(self, checkpoint_id: int) -> None:
        """Handle the abort of a checkpoint."""
        self._announced.over(checkpoint_id)
        if self._draining is not None and self._draining[0].checkpoint_id == checkpoint_id:
            self._draining = None
        if self._gate is not None:
            self._execute(self.alignment.on_abort(checkpoint_id))

    def go_on(self) -> bool:
        """Take the snapshot for a waiting drain if no operator holds rows; return whether it was taken."""
        if self._draining is None or not self._chain.finish():
            return False
        (barrier, since, moved), self._draining = self._draining, None
        self._cut(barrier, since, moved)
        return True

    def _execute(self, commands: list[AlignmentCommand]) -> None:
        assert self._gate is not None  # noqa: S101 - alignment concerns a gate's channels
        for command in commands:
            match command:
                case Block(channel):
                    self._gate.block(channel)
                case Unblock(channels):
                    for channel in channels:
                        self._gate.unblock(channel)
                    if self.alignment.running is None:
                        self._waiting = None
                case Snapshot(barrier):
                    self._complete(barrier)
                case Abort(checkpoint_id, reason):
                    self._waiting = self._now()
                    self._reports.declined(checkpoint_id, reason)

    def _complete(self, barrier: Barrier) -> None:
        """Handle the end of alignment: all rows before the barrier were processed."""
        now, buffered = self._now(), 0 if self._gate is None else self._gate.bytes_blocked
        first, self._waiting = self._waiting or now, None
        moved = now.bytes_in - first.bytes_in, buffered
        if barrier.kind is BarrierKind.DRAIN:
            self._draining = barrier, first.since_ms, moved
            self.go_on()
        else:
            self._cut(barrier, first.since_ms, moved)

    def _cut(self, barrier: Barrier, since_ms: float, moved: tuple[int, int]) -> None:
        self._announced.over(barrier.checkpoint_id)
        self.cut(barrier, Aligned(self._clock.monotonic_ms() - since_ms, *moved))

    def _now(self) -> _Waiting:
        return _Waiting(self._clock.monotonic_ms(), 0 if self._gate is None else self._gate.bytes_in)
