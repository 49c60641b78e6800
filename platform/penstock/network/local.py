"""A channel between two subtasks of one worker: elements go by reference, with the same credit as on the wire.

Made by `channel_table` for every channel whose two ends are in this worker.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.network.input_gate import InputGate
    from penstock.network.subpartition import Subpartition


class LocalLink:
    """Moves elements from a subpartition into a gate, in the thread of the caller that makes it possible."""

    def __init__(self, source: Subpartition, gate: InputGate, channel: int) -> None:
        """Join `source` to `channel` of `gate`."""
        self._source = source
        self._gate = gate
        self._channel = channel
        # producer and consumer may both find elements to move: the lock keeps the order
        self._moving = threading.Lock()

    def start(self) -> None:
        """Open the channel."""
        self._source.attach(self._move)
        self._gate.connect(self._channel, self._source.grant)

    def _move(self) -> None:
        with self._moving:
            while (element := self._source.poll()) is not None:
                self._gate.receive(self._channel, element)
