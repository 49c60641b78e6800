"""One task of a backfill: the live job's chain over a part of history or the sorted rows of a key range.

Rows reach the operators in a canonical order and in batches that do not change the result. Called by the engines
(`engine`, `spark`) in the process of the task. A repeated task writes other files: the savepoint names only those
of results that the driver received.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
import numpy as np
import pyarrow as pa

from penstock.backfill.combining import combiner_of
from penstock.backfill.exchange import COMBINED, NO_EDGE, Merger, Outbox, Packet, joined
from penstock.backfill.feeding import Feeding
from penstock.backfill.stages import Stage, TaskResult, schemas_of
from penstock.backfill.staging import HistoryOperator, operators_of
from penstock.checkpoint.stores import checksum_of, open_store, read_file
from penstock.config.settings import JobSettings
from penstock.core.clock import SystemClock
from penstock.core.elements import MIN_TIMESTAMP, Barrier, BarrierKind, Batch, Watermark, WatermarkStatus
from penstock.core.errors import PenstockError, UsageError, without_all_frames
from penstock.core.rand import SystemRand
from penstock.core.schema import schema_from_text
from penstock.core.snapshot import FileRef, KeyedStateSnapshot, SubtaskSnapshot
from penstock.graph.job_graph import KeyGroup, OperatorSpec
from penstock.graph.task_deployment import ExecutionId, InputSpec, TaskDeployment
from penstock.kernels.keys.hashing import hash_columns
from penstock.kernels.rows.key_group_split import split_by_key_group
from penstock.operators.process.keyed_process import KeyedProcessOperator
from penstock.operators.rows.columns import conform
from penstock.state.memory.budget import MemoryBudget
from penstock.task.chain.background import SlowCalls
from penstock.task.chain.environment import TaskEnvironment
from penstock.task.chain.failure import describe
from penstock.task.checkpoint.restore import ChainServices, build_chain, input_watermark_state, open_chain
from penstock.task.checkpoint.savepoint_copy import SavepointWriter

if TYPE_CHECKING:
    from penstock.operators.aggregates.combine import Combiner
    from penstock.operators.operator import OperatorSnapshot
    from penstock.state.store import KeyedState
    from penstock.task.chain.chain import Chain

#: Rows that are combined at a time: more have more rows of the same key and pane.
_COMBINED_ROWS = 1 << 19
#: Rows that operators take at a time.
BATCH_ROWS = 1 << 15

#: The only checkpoint of a backfill.
CHECKPOINT_ID = 1
_IDLE_MS = 2.0
#: Kinds whose processing-time timers would have to fire before the end of the backfill.
_PROCESS = frozenset({"process", "co_process", "plain_process"})


class BackfillTaskError(PenstockError):
    """A task failed by an error that is not penstock's; the note has the lines of the user's code and the row."""


class _Edge:
    """Replaces `network.output.ResultPartition`: rows of one outgoing edge, with their target part."""

    def __init__(self, stage: Stage, number: int, box: Outbox, part: int) -> None:
        self.spec = stage.outputs[number]
        self._combiner: Combiner | None = None
        if any(stage.combined[number : number + 1]):
            self._combiner = combiner_of(self.spec, msgspec.json.decode(stage.settings, type=JobSettings))
        #: Rows that wait to be combined.
        self._rows: list[pa.RecordBatch] = []
        self._waiting = 0
        self._schema = schema_from_text(self.spec.schema)
        self._number, self._box, self._part = number, box, part
        self._parts, self._key_groups = stage.targets[number], stage.key_groups

    def batch(self, batch: Batch) -> None:
        rows = conform(batch.data, self._schema, f"edge to {self.spec.target}")
        if self._combiner is None:
            self._box.add(self._number, rows, self._owners(rows))
            return
        self._rows.append(rows)
        self._waiting += rows.num_rows
        if self._waiting >= _COMBINED_ROWS:
            self.flush()

    def flush(self) -> None:
        """Combine the rows that wait, and send them."""
        if self._combiner is None or not self._rows:
            return
        rows = joined(self._rows)
        self._rows, self._waiting = [], 0
        combined = self._combiner.combine(rows)
        sent = rows if combined is None else combined
        self._box.add(self._number, sent, self._owners(sent), combined=combined is not None)

    def _owners(self, rows: pa.RecordBatch) -> np.ndarray[Any, Any]:
        count = rows.num_rows
        if not isinstance(self.spec.partitioner, KeyGroup):
            return np.full(count, self._part % self._parts, np.int32)
        hashes = hash_columns(rows, self.spec.partitioner.columns)
        order, offsets = split_by_key_group(hashes, self._key_groups, self._parts)
        owners = np.empty(count, np.int32)
        owners[order] = np.repeat(np.arange(self._parts, dtype=np.int32), np.diff(offsets))
        return owners

    def watermark(self, watermark: Watermark) -> None:
        """Drop the watermark: the driver gives the next stage its watermark."""

    def status(self, status: WatermarkStatus) -> None:
        """Drop the status: nothing is idle in a backfill."""


class _Part:
    """One subtask of a stage: opened, fed, checkpointed."""

    def __init__(self, stage: Stage, number: int) -> None:
        for folder in reversed(stage.python_path):
            if folder not in sys.path:
                sys.path.insert(0, folder)
        self.stage, self.number = stage, number
        self.box = Outbox(number)
        self.rows_in = 0
        self._store = open_store(stage.target_uri)
        #: Unique to this attempt.
        self._prefix = f"{stage.run_id}-{SystemRand().token(12)}-"
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-backfill-")
        clock = SystemClock()
        environment = TaskEnvironment(
            worker_id="backfill",
            clock=clock,
            network=cast("Any", None),
            report=lambda _message: None,
            background=cast("Any", None),
            blocking=cast("Any", None),
            slow_calls=SlowCalls(clock),
            managed_memory_bytes=stage.memory_bytes,
            state_dir=Path(self._folder.name),
            create_operator=operators_of(self._store, self._prefix),
        )
        self._clock = clock
        self._deployment = _deployment(stage, number)
        self._edges = [_Edge(stage, i, self.box, number) for i in range(len(stage.outputs))]
        self.chain: Chain = build_chain(self._deployment, environment, cast("Any", self._edges))
        self._stores: tuple[KeyedState, ...] = ()
        try:
            self._stores = open_chain(self.chain, self._deployment, environment, self._services())
        except BaseException:
            self.close()
            raise
        operators = [link.operator for link in self.chain.links]
        self._timed = [o for o in operators if isinstance(o, KeyedProcessOperator) and o.has_timers]

    def _services(self) -> ChainServices:
        return ChainServices(
            wake=lambda: None,
            run_async=_never,
            run_waiting=lambda work, _what: work(),
            report_published=_never,
            read_file=self._read,
            read_state=self._read,
            budget=MemoryBudget(self.stage.memory_bytes),
        )

    def _read(self, ref: FileRef) -> bytes:
        return read_file(self._store, ref)

    def read(self) -> Iterator[list[Packet]]:
        """Read this part of history to its end."""
        piece = self.stage.pieces[self.number]
        if piece.empty:
            return
        source = cast("HistoryOperator", self.chain.links[0].operator)
        source.add_splits([piece.split], no_more=False)
        while not source.read_to_end:
            if not self.chain.poll(backpressured=False) and not source.read_to_end:
                self._clock.sleep_ms(_IDLE_MS)
            self._drain()
            yield self.box.take()
        self.rows_in = self.chain.links[0].records_out

    def feed(self, rows: pa.RecordBatch, edge: int) -> None:
        """Take rows of one input."""
        self.rows_in += rows.num_rows
        self.chain.batch(Batch(rows, combined=edge >= COMBINED), self.stage.inputs[edge % COMBINED].input_index)
        self._drain()

    def feed_ordered(self, rows: pa.RecordBatch, edge: int, watermark: int) -> None:
        """Take rows in order of event time, and advance it; the function takes them key by key."""
        self._timed[0].expect_ordered(min(watermark, self.stage.watermark))
        self.feed(rows, edge)
        self.advance(watermark)

    def advance(self, watermark: int) -> None:
        """Advance event time, at most to its final value."""
        reached = min(watermark, self.stage.watermark)
        if reached > self._reached:
            self._reached = reached
            self.chain.watermark(Watermark(reached))
            self._drain()

    _reached = MIN_TIMESTAMP

    @property
    def may_fire(self) -> bool:
        """Return whether there are functions with timers, and event time is before its final value."""
        return bool(self._timed) and self._reached < self.stage.watermark

    @property
    def next_timer(self) -> int | None:
        """Return a time before which no event-time timer is due; None: there is none."""
        times = (operator.next_event_timer for operator in self._timed)
        return min((time for time in times if time is not None), default=None)

    def _drain(self) -> None:
        while self.chain.continues and self.chain.emit_ready(past_limits=True):
            pass

    def write_savepoint(self) -> TaskResult:
        """Write the state as files of a savepoint; staged output is written already."""
        self._check_timers()
        taken = self.chain.snapshot(Barrier(CHECKPOINT_ID, BarrierKind.SAVEPOINT))
        for edge in self._edges:
            edge.flush()
        writer = SavepointWriter(self._store, self._store, self._prefix)
        own = () if self.stage.vertex.is_source else input_watermark_state(self._deployment, self._reached)
        snapshot = SubtaskSnapshot(
            vertex_id=self.stage.vertex.id,
            subtask=self.number,
            keyed=tuple(writer.state(state) for part in taken for state in _frozen(part)),
            operator=(*own, *(state for part in taken for state in part.operator)),
            committables=tuple(c for part in taken for c in part.committables),
        )
        return TaskResult(
            vertex_id=self.stage.vertex.id,
            part=self.number,
            snapshot=snapshot,
            watermark=self.chain.last_watermark,
            rows_in=self.rows_in,
            late=sum(link.metrics.late_records_dropped for link in self.chain.links),
            quiet=self.stage.vertex.is_source and self.stage.pieces[self.number].quiet,
        )

    def _check_timers(self) -> None:
        for link in self.chain.links:
            timers = link.capabilities.timers
            is_set = timers is not None and timers.next_timer_ms is not None
            if link.spec.kind in _PROCESS and is_set and link.spec.uid not in self.stage.accepted:
                msg = f"{link.spec.uid!r} has set a processing-time timer, which has no meaning in a backfill"
                raise UsageError(msg, hint="use event-time timers")

    @contextlib.contextmanager
    def failures(self) -> Iterator[None]:
        """Add the user's lines and the row to errors, and name the operator of those that are not penstock's."""
        try:
            yield
        except Exception as error:
            shown = self._deployment.settings.show_values_in_errors
            line, detail = describe(error, self.chain.current_operator, show_values=shown)
            told = error if isinstance(error, PenstockError) else BackfillTaskError(line)
            if own := without_all_frames(detail):
                told.add_note(own)
            if told is error:
                raise
            raise told from error

    def close(self) -> None:
        """Free everything."""
        self.chain.close()
        for store in self._stores:
            store.close()
        self._folder.cleanup()


def run_source(stage: Stage, number: int) -> Iterator[Packet]:
    """Read one part of history; yield rows for the next stages and, last, the result."""
    part = _Part(stage, number)
    try:
        with part.failures():
            for packets in part.read():
                yield from packets
            yield from _end(part)
    finally:
        part.close()


def run_parts(stage: Stage, packets: Iterable[Packet], batch_rows: int = BATCH_ROWS) -> Iterator[Packet]:
    """Process the packets of some parts, in the order of `Packet.place`; yield as `run_source`, part by part."""
    for number, own in itertools.groupby(packets, lambda packet: packet.part):
        yield from _run_part(stage, number, own, batch_rows)


def _run_part(stage: Stage, number: int, packets: Iterable[Packet], batch_rows: int) -> Iterator[Packet]:
    feeding = Feeding(stage)
    merger = Merger(schemas_of(stage), feeding.batch_rows(batch_rows))
    part = _Part(stage, number)
    try:
        with part.failures():
            for packet in packets:
                if packet.edge == NO_EDGE:
                    continue
                for rows in merger.add(packet):
                    feeding.feed(part, rows)
                yield from part.box.take()
            for rows in merger.rest():
                feeding.feed(part, rows)
                yield from part.box.take()
            part.advance(stage.watermark)
            yield from _end(part)
    finally:
        part.close()


def _end(part: _Part) -> Iterator[Packet]:
    result = part.write_savepoint()
    part.box.finish(msgspec.msgpack.encode(result))
    yield from part.box.take()


def _deployment(stage: Stage, number: int) -> TaskDeployment:
    hashes = stage.hashes(number)
    settings = msgspec.json.decode(stage.settings, type=JobSettings)
    return TaskDeployment(
        job_id="0" * 32,
        job_name=stage.job_name,
        run_id=stage.run_id,
        generation=0,
        execution=ExecutionId(stage.vertex.id, number, 0),
        vertex_name=stage.vertex.name,
        parallelism=stage.parts,
        hash_low=hashes.low,
        hash_high=hashes.high,
        operators=_operators(stage, number),
        inputs=tuple(InputSpec(input_index=edge.input_index, schema=edge.schema) for edge in stage.inputs),
        outputs=(),
        settings=settings,
    )


def _operators(stage: Stage, number: int) -> tuple[OperatorSpec, ...]:
    """Return the chain, with the reader of this part at its head."""
    instead = stage.pieces[number].source if stage.vertex.is_source else None
    if instead is None:
        return stage.vertex.operators
    source, *behind = stage.vertex.operators
    config = {**source.config, "source": msgspec.to_builtins(instead)}
    return (msgspec.structs.replace(source, config=config), *behind)


def _frozen(taken: OperatorSnapshot) -> Iterator[KeyedStateSnapshot]:
    """Encode the frozen state of an operator; the files stay in memory until they are merged into one."""
    for state in taken.keyed:
        while not state.copy_pages(1 << 20):
            pass
        files = {
            segment.position: FileRef(inline=segment.data, length=len(segment.data), checksum=checksum_of(segment.data))
            for segment in state.encode()
        }
        state.durable(files)
        yield state.snapshot()


def _never(*_arguments: Any) -> None:
    msg = "an operator of a backfill used a service that only a running job has"
    raise NotImplementedError(msg)
