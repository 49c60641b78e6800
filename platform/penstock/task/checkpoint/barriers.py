"""Barriers in a subtask: announcement by the JobMaster, alignment of its channels, then the snapshot.

Kept by `task.drive.subtask`. A drain's snapshot waits, without blocking, until no operator holds rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.checkpoint.alignment import (
    Abort,
    Alignment,
    AlignmentCommand,
    Block,
    Overtake,
    Snapshot,
    StopCollecting,
    Unblock,
)
from penstock.core.elements import Barrier, BarrierKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock
    from penstock.network.in_flight import OvertakenRows
    from penstock.network.input_gate import InputGate
    from penstock.task.chain.chain import Chain
    from penstock.task.chain.environment import TaskReports


@dataclass(frozen=True, slots=True)
class Aligned:
    """Measurements from the first barrier of a checkpoint to the snapshot."""

    ms: float
    #: Bytes processed from the channels whose barrier had not arrived.
    processed_bytes: int
    #: Bytes in the channels whose barrier had arrived, when the last one did.
    buffered_bytes: int


@dataclass(frozen=True, slots=True)
class _AlignmentStart:
    """The subtask's state when the first barrier arrived."""

    since_ms: float
    bytes_in: int


class Barriers:
    """Processing of a checkpoint from its first barrier to the snapshot; times are monotonic milliseconds."""

    def __init__(
        self, gate: InputGate | None, chain: Chain, clock: Clock, reports: TaskReports, *, aligned: bool = True
    ) -> None:
        """Start without a checkpoint; `gate` is None for a source, where barriers begin. `aligned`: see `Alignment`."""
        self._gate = gate
        self._chain = chain
        self._clock = clock
        self._reports = reports
        self.alignment = Alignment(0 if gate is None else gate.channel_count, aligned=aligned)
        #: The newest announced barrier, and the newest one that arrived or was aborted; ids only increase.
        self._announced = self._resolved = 0
        #: State at the first barrier of each checkpoint that waits for other channels.
        self._starts: dict[int, _AlignmentStart] = {}
        #: Channels that are not read although no alignment blocks them: see `hold_back`.
        self._held_back: frozenset[int] = frozenset()
        #: A drain that waits for operators with rows: its barrier, its start, and bytes processed and buffered.
        self._draining: tuple[Barrier, float, tuple[int, int]] | None = None
        #: The newest checkpoint whose barriers may overtake rows.
        self.permitted = -1
        #: Takes the snapshot of the subtask and sends the barrier on.
        self.take_snapshot: Callable[[Barrier, Aligned], None]
        #: The same, before the rows that the barriers overtake; with the channels whose barrier was read.
        self.overtake: Callable[[Barrier, Aligned, frozenset[int]], OvertakenRows]
        #: The rows that the last overtaking checkpoint collects.
        self._collected: OvertakenRows | None = None
        #: Gives up a checkpoint whose rows are being collected.
        self.give_up: Callable[[int], None]

    @property
    def pending(self) -> bool:
        """Whether a barrier was announced, or waits for other channels or for rows."""
        if self._gate is None:
            return False
        return bool(self.alignment.waiting) or self._announced > self._resolved or self._gate.barrier_waiting

    @property
    def draining(self) -> bool:
        """Whether the last barrier waits for operators that hold rows."""
        return self._draining is not None

    def announce(self, checkpoint_id: int) -> None:
        """Announce a barrier that is on its way or has already arrived."""
        self._announced = checkpoint_id

    def permit(self, checkpoint_id: int) -> None:
        """Let the barriers of a checkpoint overtake rows."""
        self.permitted = max(self.permitted, checkpoint_id)
        if self._gate is not None and self._gate.overtakes:
            self._settle()
            self._execute(self.alignment.permit(checkpoint_id))

    def look(self) -> None:
        """Handle a barrier that has arrived, after rows that were not read."""
        barrier = self._gate.take_barrier() if self._gate is not None and self._gate.has_barrier else None
        if barrier is not None:
            self._settle()
            self._execute(self.alignment.on_received(barrier))

    def _settle(self) -> None:
        """Let the decider know when the barriers of all channels have arrived."""
        if self._collected is not None and self._collected.complete:
            self.alignment.on_collected(self._collected.checkpoint_id)
            self._collected = None

    def on_barrier(self, channel: int, barrier: Barrier) -> None:
        """Handle a barrier of a channel."""
        self._starts.setdefault(barrier.checkpoint_id, self._measure())
        self._settle()
        self._execute(self.alignment.on_barrier(channel, barrier))

    def hold_back(self, *, limited: bool) -> None:
        """Read channels after a barrier that does not block only while the sink is not `limited`.

        A limited sink takes rows before a barrier alone. Without alignment the rows after it have no bound.
        """
        if self._gate is None or not (limited or self._held_back):
            return
        blocked = self.alignment.blocked
        wanted = self.alignment.arrived - blocked if limited else frozenset()
        for channel in wanted - self._held_back:
            self._gate.block(channel)
        for channel in self._held_back - wanted - blocked:
            self._gate.unblock(channel)
        self._held_back = wanted

    def on_end_of_input(self, channel: int) -> None:
        """Handle the end of a channel."""
        self._execute(self.alignment.on_end_of_input(channel))

    def on_abort(self, checkpoint_id: int) -> None:
        """Handle the abort of a checkpoint."""
        self._resolved = max(self._resolved, checkpoint_id)
        if self._draining is not None and self._draining[0].checkpoint_id == checkpoint_id:
            self._draining = None
        if self._gate is not None:
            self._settle()
            self._execute(self.alignment.on_abort(checkpoint_id))

    def drain_if_ready(self) -> bool:
        """Take the snapshot for a waiting drain if no operator holds rows; return whether it was taken."""
        if self._draining is None or not self._chain.finish():
            return False
        (barrier, since, byte_counts), self._draining = self._draining, None
        self._take_snapshot(barrier, since, byte_counts)
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
                case Snapshot(barrier):
                    self.begin(barrier)
                case Overtake(barrier, passed):
                    self._take_overtaking(barrier, passed)
                case StopCollecting(checkpoint_id):
                    self._gate.stop_collecting()
                    self.give_up(checkpoint_id)
                case Abort(checkpoint_id, reason):
                    self._reports.declined(checkpoint_id, reason)
        waiting = self.alignment.waiting
        self._starts = {number: start for number, start in self._starts.items() if number in waiting}

    def begin(self, barrier: Barrier) -> None:
        """Handle a barrier before which all rows were processed: it begins in this subtask, or alignment has ended."""
        first, byte_counts = self._end_alignment(barrier)
        if barrier.kind is BarrierKind.DRAIN:
            self._draining = barrier, first.since_ms, byte_counts
            self.drain_if_ready()
        else:
            self._take_snapshot(barrier, first.since_ms, byte_counts)

    def _take_snapshot(self, barrier: Barrier, since_ms: float, byte_counts: tuple[int, int]) -> None:
        self.take_snapshot(barrier, self._aligned(barrier, since_ms, byte_counts))

    def _take_overtaking(self, barrier: Barrier, passed: frozenset[int]) -> None:
        first, byte_counts = self._end_alignment(barrier)
        self._collected = self.overtake(barrier, self._aligned(barrier, first.since_ms, byte_counts), passed)

    def _aligned(self, barrier: Barrier, since_ms: float, byte_counts: tuple[int, int]) -> Aligned:
        """Record that a barrier has arrived, and measure its alignment."""
        self._resolved = max(self._resolved, barrier.checkpoint_id)
        return Aligned(self._clock.monotonic_ms() - since_ms, *byte_counts)

    def _end_alignment(self, barrier: Barrier) -> tuple[_AlignmentStart, tuple[int, int]]:
        """Return the state at the first barrier, and the bytes processed and buffered since."""
        now, buffered = self._measure(), 0 if self._gate is None else self._gate.bytes_blocked
        first = self._starts.pop(barrier.checkpoint_id, now)
        return first, (now.bytes_in - first.bytes_in, buffered)

    def _measure(self) -> _AlignmentStart:
        return _AlignmentStart(self._clock.monotonic_ms(), 0 if self._gate is None else self._gate.bytes_in)
