"""The network memory of a worker, divided among the gates of its subtasks: pure, asked by `task.drive.network_shares`.

Every channel has a guaranteed part, its window, so that no channel waits for another one. What remains is shared: each
gate gets floating bytes in proportion to those it wants. Bounded are rows that have arrived or were granted; a sender
queues as much per channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.config.slot_resources import megabytes, whole
from penstock.core.errors import UsageError
from penstock.network.credit import exclusive_bytes

if TYPE_CHECKING:
    from penstock.config.settings import JobSettings
    from penstock.graph.task_deployment import InputSpec

#: The least guaranteed part of a channel.
LEAST_WINDOW = 16 << 10


@dataclass(frozen=True, slots=True)
class GateWant:
    """The network memory that a gate uses if there is enough, in bytes."""

    #: Of each channel.
    exclusive: tuple[int, ...]
    #: Of all its channels together.
    floating: int

    @property
    def total(self) -> int:
        """Both; 0 without channels."""
        return sum(self.exclusive) + self.floating if self.exclusive else 0


@dataclass(frozen=True, slots=True)
class GateShare:
    """The network memory that a gate may use, in bytes."""

    #: Bound of each channel; None: its exclusive bytes.
    window: int | None
    floating: int


def gate_want(inputs: Sequence[InputSpec], settings: JobSettings) -> GateWant:
    """Return what the gate of a subtask with these inputs wants."""
    exclusive = tuple(exclusive_bytes(settings, spec.width) for spec in inputs for _ in spec.channels)
    return GateWant(exclusive, max(0, settings.floating_buffers) * max(1, settings.buffer_size_bytes))


def gate_shares(total_bytes: int, wants: Sequence[GateWant]) -> list[GateShare]:
    """Divide the network memory of a worker among its gates.

    Raises:
        UsageError: it is too little for the least part of every channel.
    """
    exclusive = [size for want in wants for size in want.exclusive]
    floating = sum(want.floating for want in wants if want.exclusive)
    rest = total_bytes - sum(exclusive)
    if rest >= floating:
        return [GateShare(None, want.floating) for want in wants]
    if rest >= 0:
        return [GateShare(None, rest * want.floating // floating) for want in wants]
    least = sum(min(size, LEAST_WINDOW) for size in exclusive)
    if least > total_bytes:
        raise UsageError(
            f"the {len(exclusive)} input channels of this slot need {megabytes(least)} of network memory, but a slot"
            f" is guaranteed {whole(total_bytes)}",
            hint="raise taskmanager.memory or taskmanager.network_memory_min, or lower the parallelism",
        )
    return [GateShare(_window(total_bytes, exclusive), 0) for _ in wants]


def _window(total_bytes: int, exclusive: Sequence[int]) -> int:
    """Return the largest bound of a channel with which all together stay within the total, which they exceed."""
    left = total_bytes
    ascending = sorted(exclusive)
    for index, size in enumerate(ascending):
        share = left // (len(ascending) - index)
        if share < size:
            return share
        left -= size
    return ascending[-1]
