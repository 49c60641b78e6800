"""The network interface of a worker's task code: gates to read from, partitions to write to, start and stop.

`WorkerNetwork` (sockets, one thread) and `MemoryNetwork` (the simulator) both are a `DataPlane`. The order of calls
for one deployment of a job: `create_gate` and `create_outputs` for every subtask placed in this worker, then
`start_channels(job_id)` once, then run the subtasks; at the end (finished, failed or cancelled) `release(job_id)`.
Nothing is sent on a channel before its receiver's `start_channels`, so workers may be started in any order. After
`release` a new deployment of the same job (a higher epoch in its channel ids) may be created at once.

    gate    = network.create_gate(deployment, on_data)          InputGate | None (None: no inputs, a source)
        gate.poll()              -> (channel, element) | None   fair over channels; after None wait for `on_data`
        gate.input_index_of(channel) -> int                     which input of the head operator it belongs to
        gate.channel_count
        gate.block(channel) / gate.unblock(channel)             alignment; they still fill up to their credit
        gate.bytes_queued, gate.records_in, gate.bytes_in
    outputs = network.create_outputs(deployment, on_available)  list[ResultPartition], as deployment.outputs
        output.spec.side_output                                 which collector it belongs to
        output.batch(b) .watermark(w) .status(s) .barrier(b) .end()    never block; they may overdraw
        output.available         -> bool                        False: stop feeding the operator until `on_available`
        output.next_deadline_ms  -> float | None                monotonic; call `flush_due(clock.monotonic_ms())` then
        output.records_out, output.bytes_out

`on_data` and `on_available` are called from other threads, without a lock, and must only wake the task. A lost
connection is reported to `on_connection_lost`; the gates and outputs concerned raise `ConnectionLostError` from their
next call on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.graph.task_deployment import TaskDeployment
    from penstock.network.input_gate import InputGate
    from penstock.network.network_memory import GateShare
    from penstock.network.output import ResultPartition

#: Wakes a task; called from any thread.
Wake = Callable[[], None]
#: Called when a peer is lost, with its worker id and the cause.
ConnectionLost = Callable[[str, str], None]


class DataPlane(Protocol):
    """The channels of one worker."""

    @property
    def endpoint(self) -> str:
        """Return the address of this worker for others: `unix:<path>`, `tcp:host:port` or `memory:<worker>`."""

    def create_gate(
        self, deployment: TaskDeployment, on_data: Wake, share: GateShare | None = None
    ) -> InputGate | None:
        """Make the gate of one subtask; None when it has no inputs. `share`: see `InputGate`."""

    def create_outputs(self, deployment: TaskDeployment, on_available: Wake | None = None) -> list[ResultPartition]:
        """Make the outgoing partitions of one subtask, one per outgoing edge."""

    def start_channels(self, job_id: str) -> None:
        """Connect the job's channels made so far, without blocking.

        An unreachable peer is reported as a lost connection.
        """

    def release(self, job_id: str) -> None:
        """Close and forget all channels of the job in this worker, and notify peers that still use them; idempotent."""

    def close(self) -> None:
        """Release everything and stop."""
