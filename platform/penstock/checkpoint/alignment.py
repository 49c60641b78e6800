"""Barrier alignment over the input channels of one subtask: a pure decider, driven by the task's input loop.

A channel that delivered the barrier of the running checkpoint is blocked until all channels have. Barriers also flow
after `EndOfInput`, so an ended channel stays a channel. A newer barrier supersedes the running checkpoint; an aborted
one is never waited for.
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


AlignmentCommand = Block | Unblock | Snapshot | Abort


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
        commands: list[AlignmentCommand] = []
        number = barrier.checkpoint_id
        if number <= self._over or number in self._aborted:
            return commands
        if self._running is not None and number < self._running.checkpoint_id:
            return commands
        if self._running is not None and number > self._running.checkpoint_id:
            commands += self._drop(f"checkpoint {number} began before this one was aligned")
        if self._running is None:
            self._running = barrier
        self._arrived.add(channel)
        if len(self._arrived) < self._channels:
            commands.append(Block(channel))
            return commands
        commands.append(Snapshot(barrier))
        return commands + self._release()

    def on_end_of_input(self, channel: int) -> list[AlignmentCommand]:
        """Handle the end of input of `channel`; its barriers still come, so nothing is released."""
        self._ended.add(channel)
        return []

    def on_abort(self, checkpoint_id: int) -> list[AlignmentCommand]:
        """Handle an abort by the coordinator; barriers of this checkpoint that still arrive are ignored."""
        if checkpoint_id <= self._over:
            return []
        self._aborted.add(checkpoint_id)
        if self._running is None or self._running.checkpoint_id != checkpoint_id:
            return []
        return self._drop("aborted by the coordinator")

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
