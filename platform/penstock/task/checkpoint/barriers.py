"""What barriers do to a subtask: channels wait for each other, then the subtask is cut; kept by `task.drive.subtask`.

A drain is cut only when no operator holds rows any more, such as calls of an asynchronous function that are under way.
Nothing blocks meanwhile: the subtask goes on with its mails, and its neighbours in the thread with their rows.
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
    """What there was between the first barrier of a checkpoint and the cut."""

    ms: float
    #: Bytes taken in from the channels whose barrier was still to come.
    processed_bytes: int
    #: Bytes in the channels whose barrier had come, when the last one did.
    buffered_bytes: int


@dataclass(frozen=True, slots=True)
class _Waiting:
    """The subtask as it was when the first barrier came."""

    since_ms: float
    bytes_in: int


class Barriers:
    """From the first barrier of a checkpoint to the cut; times are monotonic milliseconds."""

    def __init__(self, gate: InputGate | None, chain: Chain, clock: Clock, reports: TaskReports) -> None:
        """`gate` is None for a source, where barriers begin."""
        self._gate = gate
        self._chain = chain
        self._clock = clock
        self._reports = reports
        self.alignment = Alignment(0 if gate is None else gate.channel_count)
        self._announced = AnnouncedBarrier()
        #: When the first barrier of the running checkpoint came.
        self._waiting: _Waiting | None = None
        #: A drain that waits for what operators hold, since when it was under way, and bytes processed and buffered.
        self._draining: tuple[Barrier, float, tuple[int, int]] | None = None
        #: Freezes the subtask and sends the barrier on.
        self.cut: Callable[[Barrier, Aligned], None]

    @property
    def coming(self) -> bool:
        """Whether a barrier was announced, or waits for others or behind rows."""
        if self._gate is None:
            return False
        return self.alignment.running is not None or self._announced.coming or self._gate.barrier_waiting

    @property
    def draining(self) -> bool:
        """Whether the last barrier waits for what operators hold."""
        return self._draining is not None

    def announce(self, checkpoint_id: int) -> None:
        """A barrier is on its way."""
        self._announced.announce(checkpoint_id)

    def begin(self, barrier: Barrier) -> None:
        """A barrier begins here."""
        self._complete(barrier)

    def came(self, channel: int, barrier: Barrier) -> None:
        """A barrier came in."""
        if self._waiting is None:
            self._waiting = self._now()
        self._execute(self.alignment.on_barrier(channel, barrier))

    def ended(self, channel: int) -> None:
        """All rows of a channel have come."""
        self._execute(self.alignment.on_end_of_input(channel))

    def aborted(self, checkpoint_id: int) -> None:
        """The checkpoint will never be complete."""
        self._announced.over(checkpoint_id)
        if self._draining is not None and self._draining[0].checkpoint_id == checkpoint_id:
            self._draining = None
        if self._gate is not None:
            self._execute(self.alignment.on_abort(checkpoint_id))

    def go_on(self) -> bool:
        """Cut for a drain that waits, if nothing is held any more; return whether that was done."""
        if self._draining is None or not self._chain.finish():
            return False
        (barrier, since, moved), self._draining = self._draining, None
        self._cut(barrier, since, moved)
        return True

    def _execute(self, commands: list[AlignmentCommand]) -> None:
        assert self._gate is not None  # noqa: S101 - alignment is of a gate's channels
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
        """All rows before the barrier have come."""
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
