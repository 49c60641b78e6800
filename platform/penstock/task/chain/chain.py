"""The operators of one subtask: each one's collector feeds the next, the last one's feeds the outgoing edges.

Also adds combiners to the edges and sets the layout of combined rows on the gate. Called by `task.drive.subtask` in
the subtask's one thread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.core.clock import Clock
from penstock.core.elements import MIN_TIMESTAMP, Barrier, Batch, Watermark, WatermarkStatus
from penstock.core.schema import schema_from_text
from penstock.operators.operator import (
    NO_CAPABILITIES,
    Capabilities,
    Collector,
    Operator,
    OperatorContext,
    OperatorMetrics,
    OperatorSnapshot,
    PendingOutputOperator,
    SourceOperator,
    TimedOperator,
)
from penstock.task.chain.hot_keys import HotKeys
from penstock.task.chain.operator_times import OperatorTimes

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.config.settings import JobSettings
    from penstock.core.permits import CommitPermit
    from penstock.graph.job_graph import OperatorSpec
    from penstock.network.input_gate import InputGate
    from penstock.network.output import ResultPartition


def combine_outputs(outputs: Iterable[ResultPartition], settings: JobSettings) -> None:
    """Add combiners where the receiver allows it and rows are distributed, or meet in the one subtask of all windows.

    With any other single channel, combining would only repeat the receiver's work.
    """
    for output in outputs:
        worth = len(output.channels) > 1 or output.spec.combine.get("of_all", False)
        if output.spec.combine and worth and output.schema is not None and settings.combine != "off":
            from penstock.operators.aggregates.combine import combiner_for

            combiner = combiner_for(output.spec.combine, output.schema, settings)
            if combiner is not None:
                output.combine_with(combiner)


def expect_combined(gate: InputGate | None, head: ChainLink) -> None:
    """Set the layout of combined rows on the gate, if the opened operator at the head of the chain accepts any."""
    schema = head.capabilities.combined_schema
    if gate is not None and schema is not None:
        gate.expect_combined(schema)


@dataclass(slots=True)
class ChainLink:
    """One operator of a chain."""

    spec: OperatorSpec
    operator: Operator
    metrics: OperatorMetrics = field(default_factory=OperatorMetrics)
    records_in: int = 0
    records_out: int = 0
    #: The key columns; only of a keyed operator.
    hot_keys: HotKeys | None = None
    #: Known after `open`.
    capabilities: Capabilities = NO_CAPABILITIES

    @property
    def source(self) -> SourceOperator:
        """The source, of a link that is one."""
        assert self.capabilities.source is not None  # noqa: S101 - the caller knows the kind
        return self.capabilities.source


class _NextCollector:
    """Feeds the next operator of the chain."""

    __slots__ = ("_edges", "_link", "_next", "_out", "_place", "_times", "idle", "last_watermark")

    def __init__(self, links: Sequence[ChainLink], index: int, out: Collector, edges: _EdgeCollector) -> None:
        self._link = links[index - 1]
        self._next = links[index]
        self._place = index
        self._out = out
        self._edges = edges
        self._times = edges.times
        self.last_watermark = MIN_TIMESTAMP
        self.idle = False

    def batch(self, batch: Batch) -> None:
        rows = batch.num_rows
        self._link.records_out += rows
        self._next.records_in += rows
        before = self._times.enter(self._place)
        if self._next.hot_keys is not None:
            self._next.hot_keys.observe(batch, 0)
        self._next.operator.process_batch(batch, 0, self._out)
        self._times.enter(before)

    def watermark(self, watermark: Watermark) -> None:
        self.last_watermark = watermark.timestamp
        before = self._times.enter(self._place)
        self._next.operator.process_watermark(watermark, self._out)
        self._times.enter(before)

    def status(self, status: WatermarkStatus) -> None:
        self.idle = status.idle
        self._next.operator.process_status(status, self._out)

    def side(self, tag: str, batch: Batch) -> None:
        self._edges.side(tag, batch)


class _EdgeCollector:
    """Feeds the outgoing edges of the chain."""

    __slots__ = ("_all", "_link", "_main", "_sides", "idle", "last_watermark", "times")

    def __init__(self, link: ChainLink, outputs: Sequence[ResultPartition], times: OperatorTimes) -> None:
        self._link = link
        self.times = times
        self._all = tuple(outputs)
        self._main = tuple(output for output in outputs if output.spec.side_output is None)
        self._sides: dict[str, tuple[ResultPartition, ...]] = {}
        for tag in {output.spec.side_output for output in outputs} - {None}:
            self._sides[str(tag)] = tuple(output for output in outputs if output.spec.side_output == tag)
        self.last_watermark = MIN_TIMESTAMP
        self.idle = False

    @property
    def columns(self) -> frozenset[str] | None:
        """The columns that the edges send; None if those of one edge are not known."""
        if not self._main or not all(output.spec.schema for output in self._main):
            return None
        return frozenset(name for output in self._main for name in schema_from_text(output.spec.schema).names)

    def batch(self, batch: Batch) -> None:
        self._link.records_out += batch.num_rows
        before = self.times.enter(self.times.output)
        for output in self._main:
            output.batch(batch)
        self.times.enter(before)

    def watermark(self, watermark: Watermark) -> None:
        self.last_watermark = watermark.timestamp
        before = self.times.enter(self.times.output)
        for output in self._all:
            output.watermark(watermark)
        self.times.enter(before)

    def status(self, status: WatermarkStatus) -> None:
        self.idle = status.idle
        for output in self._all:
            output.status(status)

    def side(self, tag: str, batch: Batch) -> None:
        before = self.times.enter(self.times.output)
        for output in self._sides.get(tag, ()):
            output.batch(batch)
        self.times.enter(before)


class Chain:
    """The operators of a subtask; calls start at the head."""

    def __init__(self, links: Sequence[ChainLink], outputs: Sequence[ResultPartition], clock: Clock) -> None:
        """Make a chain of `links`, in the order of data; the operators are not opened yet."""
        self.links = tuple(links)
        for link in self.links:
            link.hot_keys = HotKeys(link.spec.config, clock) if link.spec.keyed else None
        #: Measures the time of each operator.
        self.times = OperatorTimes(clock, [link.spec.uid for link in links])
        self._edges = _EdgeCollector(self.links[-1], outputs, self.times)
        collectors: list[_NextCollector | _EdgeCollector] = [self._edges]
        for index in range(len(self.links) - 1, 0, -1):
            collectors.insert(0, _NextCollector(self.links, index, collectors[0], self._edges))
        #: Feeds the last operator; the edges in a chain of one operator.
        self._to_last = collectors[max(0, len(collectors) - 2)]
        self._collectors: tuple[Collector, ...] = tuple(collectors)
        self._head = self.links[0]
        self._head_out: Collector = collectors[0]
        self._opened: list[ChainLink] = []
        #: The number of operators, from the head, that have finished after the end of input.
        self._finished = 0
        #: Capabilities with the index of their operator; known after `open`.
        self._blocking: tuple[tuple[int, Callable[[], bool]], ...] = ()
        self._timed: tuple[tuple[int, TimedOperator], ...] = ()
        self._continuing: tuple[tuple[int, PendingOutputOperator], ...] = ()
        #: Operators with back-pressure until they have emitted: they accept rows again without a checkpoint.
        self._holding: tuple[tuple[int, Callable[[], bool]], ...] = ()

    def open(self, contexts: Iterable[OperatorContext]) -> None:
        """Open all operators, the last one first, so that an operator's successor is open before it emits.

        Each receives the columns that are used downstream of it, starting with those of the edges.
        """
        downstream = self._edges.columns
        for index, (link, context) in reversed(list(enumerate(zip(self.links, contexts, strict=True)))):
            self._opened.append(link)
            self.times.begin(index)  # logs of `open`, and of calls that it starts, name the operator
            link.capabilities = link.operator.open(context)
            self.times.end()
            required = link.capabilities.required_columns
            downstream = None if required is None else required(downstream)
        declared = [(index, link.capabilities) for index, link in enumerate(self.links)]
        self._blocking = tuple((i, c.available) for i, c in declared if c.available is not None)
        self._timed = tuple((i, c.timers) for i, c in declared if c.timers is not None)
        self._continuing = tuple((i, c.pending_output) for i, c in declared if c.pending_output is not None)
        emitting = {index for index, _ in self._continuing}
        self._holding = tuple((i, available) for i, available in self._blocking if i in emitting)

    def batch(self, batch: Batch, input_index: int) -> None:
        """Process rows of an input."""
        self._head.records_in += batch.num_rows
        self.times.begin(0)
        if self._head.hot_keys is not None:
            self._head.hot_keys.observe(batch, input_index)
        self._head.operator.process_batch(batch, input_index, self._head_out)
        self.times.end()

    def watermark(self, watermark: Watermark) -> None:
        """Process the combined watermark of the input."""
        self.times.begin(0)
        self._head.operator.process_watermark(watermark, self._head_out)
        self.times.end()

    def status(self, status: WatermarkStatus) -> None:
        """Process a change of the combined input to idle or active."""
        self._head.operator.process_status(status, self._head_out)

    def poll(self, *, backpressured: bool) -> bool:
        """Let the source at the head emit a batch; return whether it did."""
        self.times.begin(0)
        emitted = self._head.source.poll(self._head_out, backpressured=backpressured)
        self.times.end()
        return emitted

    @property
    def current_operator(self) -> OperatorSpec | None:
        """The operator that was running when the chain raised: in a call, or as the last one opened."""
        index = self.times.index
        if index < len(self.links):
            return self.links[index].spec
        return self._opened[-1].spec if len(self._opened) < len(self.links) and self._opened else None

    @property
    def next_timer_ms(self) -> float | None:
        """Return when (wall-clock time) the next operator timer is due; None: there is no timer."""
        if not self._timed:
            return None
        return min((due for _, o in self._timed if (due := o.next_timer_ms) is not None), default=None)

    def process_time(self, now_ms: int) -> None:
        """Fire the operators' timers up to processing time `now_ms`."""
        for index, operator in self._timed:
            due = operator.next_timer_ms
            if due is not None and due <= now_ms:
                self.times.begin(index)
                operator.process_time(now_ms, self._collectors[index])
                self.times.end()

    @property
    def continues(self) -> bool:
        """Whether an operator may emit rows without new input."""
        return bool(self._continuing)

    @property
    def has_pending_output(self) -> bool:
        """Whether an operator will emit rows without new input."""
        return any(operator.has_pending_output for _, operator in self._continuing)

    def emit_ready(self, *, past_limits: bool) -> bool:
        """Let operators emit completed rows if all downstream operators accept rows; return whether one did.

        `past_limits`: also into a sink at its limit, which only a checkpoint relieves (its barrier waits for the rows).
        """
        emitted = False
        needed = self._holding if past_limits else self._blocking
        for index, operator in self._continuing:
            if all(available() for place, available in needed if place > index):
                self.times.begin(index)
                emitted |= operator.emit_ready(self._collectors[index])
                self.times.end()
        return emitted

    def emit_watermark(self, watermark: Watermark) -> None:
        """Emit a watermark after the source at the head (drain); an idle source becomes active first."""
        self._head_out.status(WatermarkStatus(idle=False))
        self._head_out.watermark(watermark)

    def snapshot(self, barrier: Barrier) -> tuple[OperatorSnapshot, ...]:
        """Freeze all operators, head first: rows that one emits in `snapshot` are before the barrier for the next.

        For a drain, `finish` was called until it returned True.
        """
        taken = [link.operator.snapshot(barrier, out) for link, out in zip(self.links, self._collectors, strict=True)]
        if barrier.kind.ends_job:
            self._timed = self._continuing = ()
        return tuple(taken)

    def finish(self) -> bool:
        """Let every operator emit the rest, at the end of input or for a drain.

        Return False if one still holds rows; the caller then tries again.
        """
        holders = dict(self._continuing)
        while self._finished < len(self.links):
            index = self._finished
            if index in holders and holders[index].has_pending_output:
                return False
            self._finished += 1
            self.times.begin(index)
            self.links[index].operator.finish(self._collectors[index])
            self.times.end()
        return True

    def notify_complete(self, permit: CommitPermit, held: Collection[str] = ()) -> None:
        """Notify the operators of a durable checkpoint, except the sinks in `held`."""
        for link in self.links:
            if link.spec.uid not in held:
                link.operator.notify_complete(permit)

    def notify_aborted(self, checkpoint_id: int) -> None:
        """Notify the operators of a checkpoint that will never complete."""
        for link in self.links:
            link.operator.notify_aborted(checkpoint_id)

    def close(self) -> list[Exception]:
        """Close all opened operators, even if one raises; return the errors."""
        errors: list[Exception] = []
        while self._opened:
            try:
                self._opened.pop().operator.close()
            except Exception as error:  # noqa: BLE001 - user code; the other operators must be closed in any case
                errors.append(error)
        return errors

    @property
    def available(self) -> bool:
        """Whether every operator accepts rows now."""
        return all(available() for _, available in self._blocking)

    @property
    def holding(self) -> bool:
        """Whether an operator accepts no rows until it has emitted some (`emit_ready`)."""
        return not all(available() for _, available in self._holding)

    @property
    def publishing(self) -> bool:
        """Whether an operator is publishing output."""
        sinks = (link.capabilities.publishing for link in self.links)
        return any(sink is not None and sink.publishing for sink in sinks)

    @property
    def has_unpublished(self) -> bool:
        """Whether an operator has output to publish after a checkpoint; read from any thread."""
        sinks = (link.capabilities.publishing for link in self.links)
        return any(sink is not None and sink.has_unpublished for sink in sinks)

    @property
    def watermark_of_last(self) -> int:
        """The newest watermark that reached the last operator from within the chain."""
        return self._to_last.last_watermark

    @property
    def last_is_idle(self) -> bool:
        """Whether the stream to the last operator is idle."""
        return self._to_last.idle

    @property
    def last_watermark(self) -> int:
        """The newest watermark sent to the edges."""
        return self._edges.last_watermark
