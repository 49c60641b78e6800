"""Whole exchanges in memory under arbitrary schedules: no row is lost, doubled or overtaken."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from tests.support.depth import examples

from penstock.config.settings import JobSettings
from penstock.core.clock import ManualClock
from penstock.core.elements import Barrier, Batch, EndOfInput, Watermark, WatermarkStatus
from penstock.core.schema import schema_to_text
from penstock.graph.job_graph import KeyGroup
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

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("text", pa.string())])
TEXT = schema_to_text(SCHEMA)
WORKERS = ["a", "b"]


def take_split(batch, owners, parallelism):
    parts = [batch.filter(pa.array(owners == p)) for p in range(parallelism)]
    return [part if part.num_rows else None for part in parts]


#: Odd numbers to subtask 1, even ones to subtask 0.
KERNELS = SplitKernels(
    lambda batch, columns, groups, parallelism: (batch.column(columns[0]).to_numpy() % 2, parallelism),
    take_split,
)


class Exchange:
    """Two workers, in each a source subtask and a target subtask, all to all."""

    def __init__(self, timeout_ms, buffer_size, overtakes=""):
        self.overtakes = overtakes
        self.settings = JobSettings(
            buffer_timeout_ms=timeout_ms, buffer_size_bytes=buffer_size, exclusive_buffers=1, floating_buffers=2
        )
        self.clock = ManualClock()
        self.transport = MemoryTransport(frame_limit=64)
        planes = [MemoryNetwork(w, self.transport, self.clock, kernels=KERNELS) for w in WORKERS]
        self.outputs = [self.output(planes[s], s) for s in range(2)]
        self.gates = [self.gate(planes[t], t) for t in range(2)]
        for plane in planes:
            plane.start_channels("job")
        #: By (source, target): what was sent, and what was received, as (kind, value).
        self.sent = {(s, t): [] for s in range(2) for t in range(2)}
        self.received = {(s, t): [] for s in range(2) for t in range(2)}
        #: Number of a row -> the subtask that sent it.
        self.source_of = {}
        self.count = 0

    def deployment(self, subtask, inputs=(), outputs=()):
        return TaskDeployment(
            job_id="job",
            job_name="job",
            run_id="run",
            generation=1,
            execution=ExecutionId("v", subtask, 0),
            vertex_name="v",
            parallelism=2,
            hash_low=0,
            hash_high=0,
            operators=(),
            inputs=inputs,
            outputs=outputs,
            settings=self.settings,
        )

    def output(self, plane, source):
        channels = tuple(OutputChannelSpec(ChannelId(0, source, t, 1), w, f"memory:{w}") for t, w in enumerate(WORKERS))
        spec = OutputSpec(partitioner=KeyGroup(("n",)), schema=TEXT, channels=channels, overtakes=self.overtakes)
        return plane.create_outputs(self.deployment(source, outputs=(spec,)))[0]

    def gate(self, plane, target):
        channels = tuple(InputChannelSpec(ChannelId(0, s, target, 1), w, f"memory:{w}") for s, w in enumerate(WORKERS))
        spec = InputSpec(input_index=0, schema=TEXT, channels=channels, overtakes=self.overtakes)
        return plane.create_gate(self.deployment(target, inputs=(spec,)), lambda: None)

    def batch(self, source, rows, width):
        numbers = list(range(self.count, self.count + rows))
        self.count += rows
        columns = [pa.array(numbers, pa.int64()), pa.array(["x" * width] * rows)]
        self.outputs[source].batch(Batch(pa.record_batch(columns, schema=SCHEMA)))
        for n in numbers:
            self.source_of[n] = source
            self.sent[source, n % 2].append(("row", n))

    def event(self, source, event):
        output = self.outputs[source]
        match event:
            case Watermark():
                output.watermark(event)
            case WatermarkStatus():
                output.status(event)
            case Barrier():
                output.barrier(event)
            case EndOfInput():
                output.end()
        for target in range(2):
            self.sent[source, target].append(("event", event))

    def poll(self, target):
        polled = self.gates[target].poll()
        if polled is None:
            return False
        source, element = polled
        found = [(source, ("event", element))]
        if isinstance(element, Batch):  # few rows of several channels are one batch
            found = [(self.source_of[n], ("row", n)) for n in element.data.column("n").to_pylist()]
        for origin, item in found:
            assert not self.gates[target].is_blocked(origin)
            self.received[origin, target].append(item)
        return True

    def finish(self):
        for source in range(2):
            self.event(source, EndOfInput())
        for gate in self.gates:
            for channel in range(2):
                gate.unblock(channel)
        moved = True
        while moved:
            moved = self.transport.pump_all() > 0
            for target in range(2):
                while self.poll(target):
                    moved = True

    def check(self):
        for pair, sent in self.sent.items():
            check_channel(sent, self.received[pair])


def check_channel(sent, received):
    """Rows and barriers arrive exactly as sent; watermarks may be left out or late, never early or swapped."""

    def solid(elements):
        return [e for e in elements if e[0] == "row" or isinstance(e[1], Barrier | EndOfInput)]

    assert solid(received) == solid(sent)
    positions = {event: index for index, (kind, event) in enumerate(sent) if kind == "event"}
    rows_before = np.cumsum([kind == "row" for kind, _ in sent])
    seen_rows, last = 0, -1
    for kind, event in received:
        if kind == "row":
            seen_rows += 1
        elif isinstance(event, Watermark):
            assert seen_rows >= rows_before[positions[event]], "a watermark has overtaken rows"
            assert positions[event] > last, "watermarks changed places"
            last = positions[event]

    def final(elements, kind):
        return next((e for _, e in reversed(elements) if isinstance(e, kind)), None)

    assert final(received, Watermark) == final(sent, Watermark)
    assert final(received, WatermarkStatus) == final(sent, WatermarkStatus)


EVENTS = ["watermark", "status", "barrier", "flush", "block", "unblock"]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["batch"] * 3 + EVENTS + ["pump"] * 6 + ["poll"] * 3), st.integers(0, 1), st.integers(0, 40)
    ),
    min_size=20,
    max_size=150,
)


@examples(150)
@given(STEPS, st.sampled_from([0, 50]), st.sampled_from([100, 700]))
def test_any_schedule(steps, timeout_ms, buffer_size):
    exchange = Exchange(timeout_ms, buffer_size)
    for number, (what, subtask, amount) in enumerate(steps):
        if what == "batch":
            exchange.batch(subtask, amount, width=amount * (amount % 7))
        elif what == "watermark":
            exchange.event(subtask, Watermark(number))
        elif what == "status":
            exchange.event(subtask, WatermarkStatus(idle=amount % 2 == 0))
        elif what == "barrier":
            exchange.event(subtask, Barrier(number))
        elif what == "flush":
            exchange.clock.advance(amount)
            exchange.outputs[subtask].flush_due(exchange.clock.monotonic_ms())
        elif what == "block":
            exchange.gates[subtask].block(amount % 2)
        elif what == "unblock":
            exchange.gates[subtask].unblock(amount % 2)
        elif what == "poll":
            exchange.poll(subtask)
        elif links := exchange.transport.ready_links():
            exchange.transport.pump(links[amount % len(links)])
    exchange.finish()
    exchange.check()
