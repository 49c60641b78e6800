"""What barriers do to a subtask: channels wait for each other, then the subtask is cut; kept by `task.subtask`.

A drain is cut only when no operator holds rows any more, such as calls of an asynchronous function that are under way.
Nothing blocks meanwhile: the subtask goes on with its mails, and its neighbours in the thread with their rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.checkpoint.alignment import Abort, Alignment, AlignmentCommand, Block, Snapshot, Unblock
from penstock.core.elements import Barrier, BarrierKind
from penstock.task.announced import AnnouncedBarrier

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock
    from penstock.network.input_gate import InputGate
    from penstock.task.chain import Chain
    from penstock.task.reports import TaskReports


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
        self._since: float | None = None
        #: A drain that waits for what operators hold, and since when it was under way.
        self._draining: tuple[Barrier, float] | None = None
        #: Freezes the subtask and sends the barrier on: (barrier, milliseconds since its first one came).
        self.cut: Callable[[Barrier, float], None]

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
        if self._since is None:
            self._since = self._clock.monotonic_ms()
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
        (barrier, since), self._draining = self._draining, None
        self._cut(barrier, since)
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
                        self._since = None
                case Snapshot(barrier):
                    self._complete(barrier)
                case Abort(checkpoint_id, reason):
                    self._since = self._clock.monotonic_ms()
                    self._reports.declined(checkpoint_id, reason)

    def _complete(self, barrier: Barrier) -> None:
        """All rows before the barrier have come."""
        since = self._clock.monotonic_ms() if self._since is None else self._since
        self._since = None
        if barrier.kind is BarrierKind.DRAIN:
            self._draining = barrier, since
            self.go_on()
        else:
            self._cut(barrier, since)

    def _cut(self, barrier: Barrier, since: float) -> None:
        self._announced.over(barrier.checkpoint_id)
        self.cut(barrier, self._clock.monotonic_ms() - since)
