"""The network memory of a worker: divides its share among the input gates, and tells the TaskManager what they need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from penstock.network.network_memory import gate_shares, gate_want
from penstock.rpc.messages import NetworkNeed, NetworkShare

if TYPE_CHECKING:
    from penstock.graph.task_deployment import TaskDeployment
    from penstock.network.input_gate import InputGate
    from penstock.network.network_memory import GateShare


class NetworkShares:
    """The share of one worker; all methods are called by its control thread."""

    def __init__(self, total_bytes: int | None, tell: Callable[[NetworkNeed], None]) -> None:
        """Start with the guaranteed part; None: gates have their own limits only, and nothing is reported."""
        self._guaranteed = self._total = total_bytes
        self._tell = tell
        self._gates: Sequence[InputGate] = ()
        self._number = 0
        #: The need that the TaskManager knows: gates keep to the share of the start, and need nothing.
        self._reported = NetworkNeed(number=0, needed_bytes=0)

    def divide(self, deployments: Sequence[TaskDeployment]) -> list[GateShare] | list[None]:
        """Return the shares of the gates of these subtasks.

        Raises:
            UsageError: the guaranteed part is too little for the least part of every channel.
        """
        if self._guaranteed is None or self._total is None:
            return [None] * len(deployments)
        wants = [gate_want(task.inputs, task.settings) for task in deployments]
        gate_shares(self._guaranteed, wants)
        return gate_shares(self._total, wants)

    def deployed(self, gates: Sequence[InputGate]) -> None:
        """Take the gates of this worker, which replace those before; none: nothing is needed."""
        self._gates = gates
        self.look()

    def resized(self, command: NetworkShare) -> None:
        """Divide another share among the gates."""
        self._total, self._number = command.total_bytes, command.number
        wants = [gate.want for gate in self._gates]
        for gate, share in zip(self._gates, gate_shares(command.total_bytes, wants), strict=True):
            gate.resize(share)
        self.look()

    @property
    def keeps(self) -> bool:
        """Return whether the gates keep to the newest share, and the TaskManager knows it."""
        return self._reported.number == self._number

    def look(self) -> None:
        """Tell the TaskManager what is needed, and the share that the gates keep to, if one has changed."""
        if self._total is None:
            return
        number = self._reported.number
        if not self.keeps and all(gate.keeps_to_share for gate in self._gates):
            number = self._number
        need = NetworkNeed(number=number, needed_bytes=sum(gate.want.total for gate in self._gates))
        if need != self._reported:
            self._reported = need
            self._tell(need)
