"""Barrier alignment over the input channels of one subtask: a pure decider, driven by the task's input loop.

A channel that delivered the barrier of a checkpoint is blocked until all channels have. Barriers also flow after
`EndOfInput`, so an ended channel stays a channel. A barrier in a channel that has not delivered an older one supersedes
the older checkpoint: its barrier will not come there. An aborted checkpoint is never waited for.

With `aligned=False` barriers of checkpoints block no channel. Several checkpoints may then wait for barriers, and a
snapshot has rows after the barriers of some channels: a restore processes these rows again. Savepoints and stops are
always aligned.

A checkpoint that may overtake is not aligned: with the first barrier that has arrived in any channel, the subtask takes
its snapshot at once. The rows that were sent before the other barriers are then collected until these have arrived.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.elements import Barrier, BarrierKind


@dataclass(frozen=True, slots=True)
class Block:
    """Read nothing more from this channel until it is unblocked."""

    channel: int


@dataclass(frozen=True, slots=True)
class Unblock:
    """Read these channels again."""

    channels: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All channels are at the barrier: take the snapshot and forward the barrier."""

    barrier: Barrier


@dataclass(frozen=True, slots=True)
class Abort:
    """Decline a checkpoint: this subtask will not take it."""

    checkpoint_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class Overtake:
    """Take the snapshot now and collect the rows before the barriers of all channels but those in `passed`."""

    barrier: Barrier
    passed: frozenset[int]


@dataclass(frozen=True, slots=True)
class StopCollecting:
    """Collect no further rows: this checkpoint will never be complete."""

    checkpoint_id: int


@dataclass(slots=True)
class _Waiting:
    """A checkpoint whose barrier some channels have delivered."""

    barrier: Barrier
    #: Whether these channels are blocked.
    blocks: bool
    channels: set[int]


AlignmentCommand = Block | Unblock | Snapshot | Abort | Overtake | StopCollecting


class Alignment:
    """The alignment state of one subtask."""

    def __init__(self, channels: int, *, aligned: bool = True) -> None:
        """Align `channels` input channels, numbered from 0; without `aligned`, checkpoints block none of them."""
        self._channels = channels
        self._aligned = aligned
        #: By checkpoint id, oldest first; at most one if all are aligned.
        self._waiting: dict[int, _Waiting] = {}
        self._ended: set[int] = set()
        #: Aborted before their first barrier arrived.
        self._aborted: set[int] = set()
        #: Highest checkpoint id of a barrier in this subtask. Lower ones that do not wait are over.
        self._newest = -1
        #: The newest checkpoint that may overtake, and the newest barrier that has arrived in some channel.
        self._permitted = -1
        self._received: Barrier | None = None
        #: The overtaking checkpoint whose rows are being collected.
        self._collecting: int | None = None

    @property
    def blocked(self) -> frozenset[int]:
        """Return the channels that must not be read now."""
        return frozenset(channel for w in self._waiting.values() if w.blocks for channel in w.channels)

    @property
    def arrived(self) -> frozenset[int]:
        """Return the channels that delivered the barrier of a checkpoint for which others have not."""
        return frozenset(channel for waiting in self._waiting.values() for channel in waiting.channels)

    @property
    def waiting(self) -> tuple[int, ...]:
        """Return the checkpoints whose barrier some but not all channels have delivered, oldest first."""
        return tuple(self._waiting)

    @property
    def all_ended(self) -> bool:
        """Return whether every channel delivered its end of input."""
        return len(self._ended) == self._channels

    def on_barrier(self, channel: int, barrier: Barrier) -> list[AlignmentCommand]:
        """Handle a barrier at the head of `channel`."""
        number = barrier.checkpoint_id
        if number in self._aborted or (number <= self._newest and number not in self._waiting):
            return []
        commands = self._supersede(number, channel)
        waiting = self._begin(barrier)
        waiting.channels.add(channel)
        if len(waiting.channels) < self._channels:
            return [*commands, Block(channel)] if waiting.blocks else commands
        return [*commands, Snapshot(barrier), *self._end(number)]

    def permit(self, checkpoint_id: int) -> list[AlignmentCommand]:
        """Let the barriers of this checkpoint overtake rows from now on."""
        self._permitted = max(self._permitted, checkpoint_id)
        return self._overtake_if_due()

    def on_received(self, barrier: Barrier) -> list[AlignmentCommand]:
        """Handle a barrier that has arrived in a channel, after rows that were not read."""
        if self._received is None or barrier.checkpoint_id > self._received.checkpoint_id:
            self._received = barrier
        return self._overtake_if_due()

    def on_collected(self, checkpoint_id: int) -> None:
        """Handle the last barrier of an overtaking checkpoint: all its rows are collected."""
        if self._collecting == checkpoint_id:
            self._collecting = None

    def on_end_of_input(self, channel: int) -> list[AlignmentCommand]:
        """Handle the end of input of `channel`; its barriers still come, so nothing is released."""
        self._ended.add(channel)
        return []

    def on_abort(self, checkpoint_id: int) -> list[AlignmentCommand]:
        """Handle an abort by the coordinator; barriers of this checkpoint that still arrive are ignored."""
        if checkpoint_id == self._collecting:
            self._collecting = None
            return [StopCollecting(checkpoint_id)]
        if checkpoint_id in self._waiting:
            return self._drop(checkpoint_id, "aborted by the coordinator")
        if checkpoint_id > self._newest:
            self._aborted.add(checkpoint_id)
        return []

    def _overtake_if_due(self) -> list[AlignmentCommand]:
        number, newest = self._permitted, self._newest
        waiting = self._waiting.get(number)
        if number < newest or (number == newest and waiting is None) or number in self._aborted:
            return []
        barrier = self._received if waiting is None else waiting.barrier
        if barrier is None or barrier.checkpoint_id != number:
            return []
        commands = self._supersede(number)
        passed = frozenset(self._begin(barrier).channels)
        released = self._end(number)
        self._collecting = number
        return [*commands, Overtake(barrier, passed), *(released if passed else [])]

    def _supersede(self, number: int, channel: int | None = None) -> list[AlignmentCommand]:
        """Give up older checkpoints: those that `channel` has not delivered, or all, and one whose rows are collected.

        No barrier of theirs follows in the channel.
        """
        commands: list[AlignmentCommand] = []
        if self._collecting is not None and number > self._collecting:
            reason = f"checkpoint {number} began before all barriers of this one had arrived"
            commands += [StopCollecting(self._collecting), Abort(self._collecting, reason)]
            self._collecting = None
        for older, waiting in tuple(self._waiting.items()):
            if older < number and channel not in waiting.channels:
                commands += self._drop(older, f"checkpoint {number} began before this one was aligned")
        return commands

    def _begin(self, barrier: Barrier) -> _Waiting:
        """Return the channels that have delivered this barrier; none before the first."""
        number = barrier.checkpoint_id
        if number > self._newest:
            self._newest = number
            self._aborted = {aborted for aborted in self._aborted if aborted > number}
            blocks = self._aligned or barrier.kind is not BarrierKind.CHECKPOINT
            self._waiting[number] = _Waiting(barrier, blocks, set())
        return self._waiting[number]

    def _drop(self, number: int, reason: str) -> list[AlignmentCommand]:
        return [Abort(number, reason), *self._end(number)]

    def _end(self, number: int) -> list[AlignmentCommand]:
        ended = self._waiting.pop(number)
        return [Unblock(tuple(sorted(ended.channels)))] if ended.blocks and self._channels > 1 else []
