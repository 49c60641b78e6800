"""Barrier alignment over the input channels of one subtask: a pure decider, driven by the task's input loop.

A channel that delivered the barrier of the running checkpoint is blocked until all channels have. Barriers also flow
after `EndOfInput`, so an ended channel stays a channel. A newer barrier supersedes the running checkpoint; an aborted
one is never waited for.

A checkpoint that may overtake is not aligned: with the first barrier that has arrived in any channel, the subtask takes
its snapshot at once. The rows that were sent before the other barriers are then collected until these have arrived.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.elements import Barrier


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
    """Decline the running checkpoint: this subtask will not take it."""

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


AlignmentCommand = Block | Unblock | Snapshot | Abort | Overtake | StopCollecting


class Alignment:
    """The alignment state of one subtask."""

    def __init__(self, channels: int) -> None:
        """Align `channels` input channels, numbered from 0."""
        self._channels = channels
        self._running: Barrier | None = None
        self._arrived: set[int] = set()
        self._ended: set[int] = set()
        self._aborted: set[int] = set()
        #: Highest checkpoint id that this subtask has taken, superseded or aborted.
        self._over = -1
        #: The newest checkpoint that may overtake, and the newest barrier that has arrived in some channel.
        self._permitted = -1
        self._received: Barrier | None = None
        #: The overtaking checkpoint whose rows are being collected.
        self._collecting: int | None = None

    @property
    def blocked(self) -> frozenset[int]:
        """Return the channels that must not be read now."""
        return frozenset(self._arrived)

    @property
    def running(self) -> Barrier | None:
        """Return the barrier being aligned, if any."""
        return self._running

    @property
    def all_ended(self) -> bool:
        """Return whether every channel delivered its end of input."""
        return len(self._ended) == self._channels

    def on_barrier(self, channel: int, barrier: Barrier) -> list[AlignmentCommand]:
        """Handle a barrier at the head of `channel`."""
        number = barrier.checkpoint_id
        if number <= self._over or number in self._aborted:
            return []
        if self._running is not None and number < self._running.checkpoint_id:
            return []
        commands = self._supersede(number)
        if self._running is None:
            self._running = barrier
        self._arrived.add(channel)
        if len(self._arrived) < self._channels:
            commands.append(Block(channel))
            return commands
        commands.append(Snapshot(barrier))
        return commands + self._release()

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
        if checkpoint_id <= self._over:
            return []
        self._aborted.add(checkpoint_id)
        if self._running is None or self._running.checkpoint_id != checkpoint_id:
            return []
        return self._drop("aborted by the coordinator")

    def _overtake_if_due(self) -> list[AlignmentCommand]:
        running, received = self._running, self._received
        barrier = running if running is not None and running.checkpoint_id >= self._permitted else received
        number = self._permitted
        if barrier is None or barrier.checkpoint_id != number or number <= self._over or number in self._aborted:
            return []
        commands = self._supersede(number)
        passed = frozenset(self._arrived)
        self._running = barrier
        released = self._release()
        self._collecting = number
        return [*commands, Overtake(barrier, passed), *(released if passed else [])]

    def _supersede(self, number: int) -> list[AlignmentCommand]:
        """Give up an older checkpoint that is being aligned, or whose rows are being collected."""
        commands: list[AlignmentCommand] = []
        if self._collecting is not None and number > self._collecting:
            reason = f"checkpoint {number} began before all barriers of this one had arrived"
            commands += [StopCollecting(self._collecting), Abort(self._collecting, reason)]
            self._collecting = None
        if self._running is not None and number > self._running.checkpoint_id:
            commands += self._drop(f"checkpoint {number} began before this one was aligned")
        return commands

    def _drop(self, reason: str) -> list[AlignmentCommand]:
        assert self._running is not None  # noqa: S101 - callers have checked; narrows the type
        return [Abort(self._running.checkpoint_id, reason), *self._release()]

    def _release(self) -> list[AlignmentCommand]:
        assert self._running is not None  # noqa: S101
        self._over = self._running.checkpoint_id
        self._aborted = {number for number in self._aborted if number > self._over}
        waiting = tuple(sorted(self._arrived))
        self._running, self._arrived = None, set()
        return [Unblock(waiting)] if self._channels > 1 else []
