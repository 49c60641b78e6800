"""The channels of one worker by job: makes gates and partitions, joins local ends, passes remote ends on.

The part of a `DataPlane` that is the same over sockets (`connection`) and in memory (`simulated_network`).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from penstock.core.errors import PenstockError
from penstock.network.frame import ChannelKey
from penstock.network.input_gate import InputGate
from penstock.network.output import OutputOptions, ResultPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.core.clock import Clock
    from penstock.graph.task_deployment import ChannelId, TaskDeployment
    from penstock.network.data_plane import Wake
    from penstock.network.network_memory import GateShare
    from penstock.network.output import SplitKernels
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


class Peer(NamedTuple):
    """Another worker."""

    worker_id: str
    endpoint: str


class Carrier(Protocol):
    """Carries remote channels to their other end."""

    def attach_output(self, peer: Peer, key: ChannelKey, source: Subpartition) -> None:
        """Carry `source` to the peer."""

    def attach_input(self, peer: Peer, key: ChannelKey, gate: InputGate, channel: int) -> None:
        """Deliver messages of the peer for `key`."""

    def detach(self, keys: list[ChannelKey]) -> None:
        """Forget these channels and notify their peers."""


@dataclass(slots=True)
class _JobChannels:
    gates: list[InputGate] = field(default_factory=list)
    outputs: list[ResultPartition] = field(default_factory=list)
    #: Channels with both ends in this worker; an end waits here for the other.
    local_sources: dict[ChannelId, Subpartition] = field(default_factory=dict)
    local_targets: dict[ChannelId, tuple[InputGate, int]] = field(default_factory=dict)
    new_sources: list[tuple[Peer, ChannelKey, Subpartition]] = field(default_factory=list)
    new_targets: list[tuple[Peer, ChannelKey, InputGate, int]] = field(default_factory=list)
    remote_keys: list[ChannelKey] = field(default_factory=list)


class ChannelTable:
    """All gates and partitions of one worker."""

    def __init__(self, worker_id: str, clock: Clock, carrier: Carrier, kernels: SplitKernels | None = None) -> None:
        """Use `carrier` for the channels that leave this worker."""
        self._worker_id = worker_id
        self._clock = clock
        self._carrier = carrier
        self._kernels = kernels
        self._lock = threading.Lock()
        self._jobs: dict[str, _JobChannels] = {}

    def create_gate(
        self, deployment: TaskDeployment, on_data: Wake, share: GateShare | None = None
    ) -> InputGate | None:
        """Make the gate of one subtask; None when it has no inputs. `share`: see `InputGate`."""
        if not deployment.inputs:
            return None
        gate = InputGate(deployment.inputs, deployment.settings, on_data, clock=self._clock, share=share)
        with self._lock:
            job = self._jobs.setdefault(deployment.job_id, _JobChannels())
            job.gates.append(gate)
            for index, spec in enumerate(gate.channel_specs):
                if spec.worker_id == self._worker_id:
                    job.local_targets[spec.id] = (gate, index)
                else:
                    key = ChannelKey.of(deployment.job_id, spec.id)
                    job.new_targets.append((Peer(spec.worker_id, spec.endpoint), key, gate, index))
        return gate

    def create_outputs(self, deployment: TaskDeployment, on_available: Wake | None = None) -> list[ResultPartition]:
        """Make the outgoing partitions of one subtask, one per outgoing edge."""
        options = OutputOptions(
            settings=deployment.settings,
            clock=self._clock,
            subtask=deployment.execution.subtask,
            on_available=on_available,
            kernels=self._kernels,
        )
        outputs = [ResultPartition(spec, options) for spec in deployment.outputs]
        with self._lock:
            job = self._jobs.setdefault(deployment.job_id, _JobChannels())
            job.outputs += outputs
            for output in outputs:
                for spec, source in zip(output.spec.channels, output.channels, strict=True):
                    if spec.worker_id == self._worker_id:
                        job.local_sources[spec.id] = source
                        continue
                    if output.schema is None:
                        raise PenstockError("an edge between workers has no schema", hint="OutputSpec.schema is empty")
                    source.encode_with(_encode)
                    key = ChannelKey.of(deployment.job_id, spec.id)
                    job.new_sources.append((Peer(spec.worker_id, spec.endpoint), key, source))
        return outputs

    def start_channels(self, job_id: str) -> None:
        """Join local ends and pass remote ends to the carrier: all that were made since the last call."""
        with self._lock:
            job = self._jobs.get(job_id)
            if job is None:
                return
            both = [channel for channel in job.local_sources if channel in job.local_targets]
            links = [LocalLink(job.local_sources.pop(channel), *job.local_targets.pop(channel)) for channel in both]
            sources, job.new_sources = job.new_sources, []
            targets, job.new_targets = job.new_targets, []
            job.remote_keys += [entry[1] for entry in sources] + [entry[1] for entry in targets]
        for peer, key, source in sources:
            self._carrier.attach_output(peer, key, source)
        for peer, key, gate, index in targets:
            self._carrier.attach_input(peer, key, gate, index)
        for link in links:
            link.start()

    def release(self, job_id: str) -> None:
        """Close and forget all channels of the job."""
        with self._lock:
            job = self._jobs.pop(job_id, None)
        if job is None:
            return
        self._carrier.detach(job.remote_keys)
        for gate in job.gates:
            gate.close()
        for output in job.outputs:
            for source in output.channels:
                if not source.ended:  # after its end of input a queue still has to reach the receiver
                    source.close()

    def job_ids(self) -> list[str]:
        """Return the jobs that have channels here."""
        with self._lock:
            return list(self._jobs)


def _encode(rows: pa.RecordBatch) -> pa.Buffer:
    return rows.serialize()
