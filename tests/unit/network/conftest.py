"""Builders every network test shares: rows, deployments of a two-vertex job, workers in memory."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from penstock.config.settings import JobSettings
from penstock.core.clock import ManualClock
from penstock.core.elements import Batch, EndOfInput
from penstock.core.schema import schema_to_text
from penstock.graph.job_graph import Forward
from penstock.graph.task_deployment import (
    ChannelId,
    ExecutionId,
    InputChannelSpec,
    InputSpec,
    OutputChannelSpec,
    OutputSpec,
    TaskDeployment,
)
from penstock.network.output import SplitKernels
from penstock.network.simulated_network import MemoryNetwork, MemoryTransport

KEY = b"k" * 32
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.string())])
SMALL = JobSettings(buffer_size_bytes=1000, exclusive_buffers=2, floating_buffers=4, buffer_timeout_ms=0)


def make_rows(count, first=0, text="x"):
    keys = np.arange(first, first + count, dtype=np.int64)
    return pa.record_batch([pa.array(keys), pa.array([text] * count)], schema=SCHEMA)


def hash_columns(batch, columns):
    """A twin of the compiled hash: any well-spread function of the key will do here."""
    keys = batch.column(columns[0]).to_numpy().astype(np.uint64)
    return (keys * np.uint64(0x9E3779B97F4A7C15)).astype(np.int64)


def order_by_owner(batch, columns, key_groups, parallelism):
    hashes = hash_columns(batch, columns)
    groups = [(((int(h) >> 32) + (1 << 31)) * key_groups) >> 32 for h in hashes]
    owners = np.array([g * parallelism // key_groups for g in groups], dtype=np.int64)
    order = np.argsort(owners, kind="stable").astype(np.int32)
    return order, np.searchsorted(owners[order], np.arange(parallelism + 1))


def take_split(batch, order, offsets):
    taken = batch.take(pa.array(order))
    parts = [taken.slice(a, b - a) for a, b in itertools.pairwise(offsets)]
    return [part if part.num_rows else None for part in parts]


TWINS = SplitKernels(order_by_owner, take_split)


class Job:
    """A job `s -> t` over workers: makes both sides' gates and outputs in the data planes given."""

    def __init__(self, planes, settings=SMALL, job_id="job", epoch=1):
        self.planes, self.settings, self.job_id, self.epoch = planes, settings, job_id, epoch

    def deployment(self, vertex, subtask, inputs=(), outputs=()):
        return TaskDeployment(
            job_id=self.job_id,
            job_name="job",
            run_id="run",
            generation=1,
            execution=ExecutionId(vertex, subtask, 0),
            vertex_name=vertex,
            parallelism=1,
            hash_low=0,
            hash_high=0,
            operators=(),
            inputs=inputs,
            outputs=outputs,
            settings=self.settings,
        )

    def channel(self, source, target):
        return ChannelId(0, source, target, self.epoch)

    def outputs(self, subtask, worker, targets, *, partitioner=None, wake=None):
        """The output of source subtask `subtask` in `worker`, to target subtasks placed in the workers `targets`."""
        channels = tuple(
            OutputChannelSpec(self.channel(subtask, t), w, self.endpoint(w)) for t, w in enumerate(targets)
        )
        spec = OutputSpec(partitioner=partitioner or Forward(), schema=schema_to_text(SCHEMA), channels=channels)
        (output,) = self.planes[worker].create_outputs(self.deployment("s", subtask, outputs=(spec,)), wake)
        return output

    def gate(self, subtask, worker, sources, on_data=lambda: None, share=None):
        """The gate of target subtask `subtask` in `worker`, from source subtasks placed in the workers `sources`."""
        channels = tuple(InputChannelSpec(self.channel(s, subtask), w, self.endpoint(w)) for s, w in enumerate(sources))
        spec = InputSpec(input_index=0, schema=schema_to_text(SCHEMA), channels=channels)
        return self.planes[worker].create_gate(self.deployment("t", subtask, inputs=(spec,)), on_data, share)

    def endpoint(self, worker):
        return self.planes[worker].endpoint if worker in self.planes else f"memory:{worker}"

    def start(self, *workers):
        for worker in workers or self.planes:
            self.planes[worker].start_channels(self.job_id)


def poll_all(gate):
    """Everything the gate gives now."""
    found = []
    while (element := gate.poll()) is not None:
        found.append(element)
    return found


def keys_of(elements):
    return [k for _, e in elements if isinstance(e, Batch) for k in e.data.column("k").to_pylist()]


class Memory:
    """Workers a, b, ... in memory."""

    def __init__(self, workers="ab", settings=SMALL, frame_limit=300):
        self.clock = ManualClock()
        self.transport = MemoryTransport(frame_limit)
        self.lost = []
        self.planes = {w: self.join(w) for w in workers}
        self.job = Job(self.planes, settings)

    def join(self, worker):
        def lost(peer, reason):
            self.lost.append((worker, peer, reason))

        return MemoryNetwork(worker, self.transport, self.clock, on_connection_lost=lost, kernels=TWINS)

    def exchange(self, gate):
        """Move frames and poll until nothing moves."""
        found = []
        while True:
            moved = self.transport.pump_all()
            polled = poll_all(gate)
            found += polled
            if not moved and not polled:
                return found


def ended(elements, channels=1):
    return sum(isinstance(e, EndOfInput) for _, e in elements) == channels


@pytest.fixture
def net():
    return SimpleNamespace(
        SCHEMA=SCHEMA,
        SMALL=SMALL,
        TWINS=TWINS,
        twin_hash=hash_columns,
        Job=Job,
        Memory=Memory,
        rows=make_rows,
        poll_all=poll_all,
        keys_of=keys_of,
        ended=ended,
    )
