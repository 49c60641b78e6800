"""The end of a chain: writes rows to an external system with the guarantee of the sink's delivery mode.

Keeps the pending output of the subtask from barrier to publication.
"""

# ruff: noqa: ARG002 - the protocol sets the parameters of hooks

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.connector.sink import (
    CommitOutcome,
    Committer,
    SinkContext,
    SinkFactory,
    SinkSpec,
    SinkWriter,
    load_factory,
)
from penstock.connector.staging import encode_chunk
from penstock.core import failpoints
from penstock.core.errors import PenstockError
from penstock.core.schema import schema_from_text
from penstock.core.snapshot import Committable
from penstock.core.views import plain_schema
from penstock.operators.operator import Capabilities, Operator, OperatorSnapshot, StagedOutput
from penstock.operators.rows.columns import conform

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa

    from penstock.connector.sink import FileReader
    from penstock.core.elements import Barrier, Batch
    from penstock.core.permits import CommitPermit
    from penstock.operators.operator import Collector, OperatorContext


@dataclass(slots=True)
class _Entry:
    committable: Committable
    #: Encoders of the staged chunks; empty once the files are written.
    chunks: tuple[Callable[[], bytes], ...]
    written: bool


class PendingOutput:
    """Committables of this subtask and run, oldest checkpoint first."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._bytes = 0
        #: Bytes of rows that are only in memory.
        self.memory_bytes = 0

    def __len__(self) -> int:
        """Return the number of pending epochs."""
        return len(self._entries)

    @property
    def size_bytes(self) -> int:
        """Bytes of the pending output."""
        return self._bytes

    def stage(self, committable: Committable, chunks: tuple[Callable[[], bytes], ...]) -> None:
        """Add an epoch whose rows are still in memory and will be written with the checkpoint."""
        self._add(_Entry(committable, chunks, written=False))
        self.memory_bytes += committable.size_bytes

    def prepared(self, committables: Iterable[Committable]) -> None:
        """Add output that is already durable (an open, flushed transaction)."""
        for committable in committables:
            self._add(_Entry(committable, (), written=True))

    def written(self, committable: Committable) -> None:
        """Replace an epoch by its staged files, for later snapshots. Unknown ids (published since) are ignored."""
        entry = self._entries.get(committable.id)
        if entry is not None:
            self.memory_bytes -= 0 if entry.written else entry.committable.size_bytes
            self._bytes += committable.size_bytes - entry.committable.size_bytes
            entry.committable, entry.chunks, entry.written = committable, (), True

    def to_snapshot(self) -> tuple[tuple[Committable, ...], tuple[StagedOutput, ...]]:
        """Return the durable output, and the output to write (again, if an earlier upload failed or still runs)."""
        durable = tuple(entry.committable for entry in self._entries.values() if entry.written)
        staged = tuple(
            StagedOutput(entry.committable, entry.chunks) for entry in self._entries.values() if not entry.written
        )
        return durable, staged

    def releasable(self, checkpoint_id: int) -> tuple[Committable, ...]:
        """Return the output that a permit for `checkpoint_id` releases, in order, up to the first unwritten epoch."""
        ready = []
        for entry in self._entries.values():
            if entry.committable.checkpoint_id > checkpoint_id or not entry.written:
                break
            ready.append(entry.committable)
        return tuple(ready)

    def published(self, ids: Iterable[str]) -> None:
        """Remove output that is known to be published."""
        for committable_id in ids:
            entry = self._entries.pop(committable_id, None)
            if entry is not None:
                self._bytes -= entry.committable.size_bytes

    def _add(self, entry: _Entry) -> None:
        self._entries[entry.committable.id] = entry
        self._bytes += entry.committable.size_bytes


#: Upper bound of one staged chunk, which is published in one transaction.
CHUNK_BYTES = 64 << 20


class SinkOverflowError(PenstockError):
    """Pending output exceeds the limit of the settings and no checkpoint will release it."""


class EpochBuffer:
    """Rows since the last barrier, split into chunks of at most `chunk_bytes`."""

    def __init__(self, schema: pa.Schema, chunk_bytes: int) -> None:
        self._schema = schema
        self._chunk_bytes = chunk_bytes
        self._chunks: list[list[pa.RecordBatch]] = []
        self._last_bytes = 0
        self.rows = 0
        self.size_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Append rows; a batch larger than a chunk is split."""
        per_row = max(1, batch.nbytes // batch.num_rows)
        step = max(1, self._chunk_bytes // per_row)
        for start in range(0, batch.num_rows, step):
            self._append(batch.slice(start, step) if batch.num_rows > step else batch)
        self.rows += batch.num_rows

    def _append(self, batch: pa.RecordBatch) -> None:
        size = batch.nbytes
        if not self._chunks or self._last_bytes + size > self._chunk_bytes:
            self._chunks.append([])
            self._last_bytes = 0
        self._chunks[-1].append(batch)
        self._last_bytes += size
        self.size_bytes += size

    def take(self) -> tuple[Callable[[], bytes], ...]:
        """Return one encoder per chunk, to be called in the background, and begin the next epoch."""
        chunks, self._chunks = self._chunks, []
        self.rows = self.size_bytes = self._last_bytes = 0
        return tuple(partial(encode_chunk, self._schema, tuple(chunk)) for chunk in chunks)


def sink_context(context: OperatorContext) -> SinkContext:
    """Return the description of the subtask for a sink's connector."""
    return SinkContext(
        job_name=context.job_name,
        uid=context.spec.uid,
        run_id=context.run_id,
        subtask=context.subtask,
        parallelism=context.parallelism,
        attempt=context.attempt,
        clock=context.clock,
    )


def chunk_bytes_of(context: OperatorContext, sink: SinkSpec) -> int:
    """Return the size of a chunk of staged output."""
    return int(context.spec.config.get("chunk_bytes") or sink.config.get("chunk_bytes") or CHUNK_BYTES)


class SinkOperator(Operator):
    """Writes to a connector's sink in one of its delivery modes (`connector.sink`)."""

    _writer: SinkWriter | None = None
    _publication: _Publication | None = None
    #: None before `open`. A list, because removing its last element is atomic: exactly one thread closes the committer.
    _committers: list[Committer] | None = None

    def open(self, context: OperatorContext) -> Capabilities:
        self._context = context
        spec = msgspec.convert(context.spec.config["sink"], SinkSpec)
        self._spec = spec
        self._where = f"sink {context.spec.uid!r}"
        self._writing = f"{self._where} ({context.subtask}): writing to {spec.target}"
        self._sink_context = sink_context(context)
        self._pending = PendingOutput()
        self._pending.prepared(context.uncommitted)
        self._permit: CommitPermit | None = None
        factory: SinkFactory = load_factory(spec.factory)
        self._writer = factory.create_writer(spec, self._sink_context)
        schema = schema_from_text(spec.schema)
        # batches of view columns would keep their pools in memory while they wait
        self._schema = plain_schema(schema) if self._writer is None else schema
        self._buffer = EpochBuffer(self._schema, chunk_bytes_of(context, spec))
        committer = factory.create_committer(spec, self._sink_context)
        self._committers = [] if committer is None else [committer]
        return Capabilities(available=lambda: self.available, required_columns=self.required_columns, publishing=self)

    def required_columns(self, downstream_columns: frozenset[str] | None) -> frozenset[str]:
        """Require only the columns of the sink's schema."""
        return frozenset(self._schema.names)

    @property
    def available(self) -> bool:
        """Whether the sink accepts rows; False once the pending output has reached its limit. Barriers always pass."""
        settings, memory_bytes = self._context.settings, self._pending.memory_bytes + self._buffer.size_bytes
        if settings.checkpoint_interval_ms and memory_bytes >= self._context.limits.held_output_bytes:
            return False
        return (
            self._pending.size_bytes + self._buffer.size_bytes < settings.sink_pending_max_bytes
            and len(self._pending) < settings.sink_pending_max_epochs
        )

    @property
    def publishing(self) -> bool:
        """Whether a publication is under way; the task waits for it before it closes a finished subtask."""
        return self._publication is not None

    @property
    def has_unpublished(self) -> bool:
        """Whether output of a checkpoint waits for a permit or is being published."""
        return len(self._pending) > 0

    def process_batch(self, batch: Batch, input_index: int, out: Collector) -> None:
        rows = conform(batch.data, self._schema, self._where)
        if self._writer is not None:
            self._context.run_waiting(partial(self._writer.write, rows), self._writing)
            return
        self._buffer.add(rows)
        settings = self._context.settings
        if settings.checkpoint_interval_ms is None and self._buffer.size_bytes >= settings.sink_pending_max_bytes:
            msg = f"{self._where}: {self._buffer.size_bytes} bytes wait for a checkpoint, and the job takes none"
            raise SinkOverflowError(msg, hint="set checkpoint_interval, or raise sink_pending_max_bytes")

    def process_watermark(self, watermark: Any, out: Collector) -> None:
        """Do nothing: no operator follows a sink."""

    def process_status(self, status: Any, out: Collector) -> None:
        """Do nothing: no operator follows a sink."""

    # --- checkpoints -----------------------------------------------------------------------------------------------

    def snapshot(self, barrier: Barrier, out: Collector) -> OperatorSnapshot:
        if self._writer is not None:
            if self._spec.delivery != "none":
                self._pending.prepared(self._prepare_commit(barrier.checkpoint_id))
        elif self._buffer.rows:
            committable = self._committable(barrier.checkpoint_id)
            self._pending.stage(committable, self._buffer.take())
        committables, staged = self._pending.to_snapshot()
        return OperatorSnapshot(committables=committables, staged=staged)

    def _prepare_commit(self, checkpoint_id: int) -> tuple[Committable, ...]:
        assert self._writer is not None  # noqa: S101 - staged sinks have no writer
        what = f"{self._where} ({self._context.subtask}): flushing"
        epoch = f" checkpoint {checkpoint_id}" if checkpoint_id else " the last rows"
        work = partial(self._writer.prepare_commit, checkpoint_id)
        prepared: tuple[Committable, ...] = self._context.run_waiting(work, f"{what}{epoch} to {self._spec.target}")
        return prepared

    def _committable(self, checkpoint_id: int) -> Committable:
        context = self._sink_context
        return Committable(
            id=f"{context.uid}/{context.run_id}/{context.subtask}/{checkpoint_id}",
            uid=context.uid,
            run_id=context.run_id,
            subtask=context.subtask,
            checkpoint_id=checkpoint_id,
            transactional_id=context.transactional_id,
            marker_group=context.transactional_id,
            rows=self._buffer.rows,
            size_bytes=self._buffer.size_bytes,
            created_ms=context.clock.now_ms(),
        )

    def staged_written(self, committable: Committable) -> None:
        """Record that the task has written and verified the staged files in `committable`. Subtask thread."""
        self._pending.written(committable)
        self._publish_next()

    def notify_complete(self, permit: CommitPermit) -> None:
        if permit.run_id != self._context.run_id:
            return
        if self._permit is None or permit.checkpoint_id > self._permit.checkpoint_id:
            self._permit = permit
        self._publish_next()

    def notify_aborted(self, checkpoint_id: int) -> None:
        """Do nothing: the output stays pending and is released by the next permit."""

    def finish(self, out: Collector) -> None:
        if self._writer is not None and self._spec.delivery in ("at-least-once", "none"):
            self._prepare_commit(0)

    # --- publishing ------------------------------------------------------------------------------------------------

    def _publish_next(self) -> None:
        """Start publishing the output that the newest permit releases, unless a publication runs."""
        if self._permit is None or self._publication is not None or not self._committers:
            return
        committables = self._pending.releasable(self._permit.checkpoint_id)
        if not committables:
            return
        publication = _Publication(self._committers, self._permit, committables, self._context.read_file)
        self._publication = publication
        newest = max(committable.checkpoint_id for committable in committables)
        what = f"{self._where} ({self._context.subtask}): publishing checkpoint {newest}"
        self._context.run_async(publication.run, self._published, f"{what} to {self._spec.target}")

    def _published(self, result: Any, error: BaseException | None) -> None:
        """Handle the end of a publication, in the subtask's thread, where raising fails the task."""
        self._publication = None
        if error is not None:
            raise error
        outcomes: tuple[CommitOutcome, ...] = result
        ids = tuple(outcome.committable_id for outcome in outcomes)
        self._pending.published(ids)
        extra = self._context.metrics.extra
        for outcome in outcomes:
            extra["numRecordsPublished"] = extra.get("numRecordsPublished", 0.0) + outcome.rows
        self._context.report_published(ids)
        self._publish_next()
        self._context.wake()

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
        if self._publication is not None:
            self._publication.close_after()
        elif self._committers is not None:
            _close_one(self._committers)


class _Publication:
    """One call of the committer in a background thread."""

    def __init__(
        self,
        committers: list[Committer],
        permit: CommitPermit,
        committables: tuple[Committable, ...],
        read: FileReader,
    ) -> None:
        self._committers = committers
        self._permit = permit
        self._committables = committables
        self._read = read
        self._done = False
        self._close = False

    def run(self) -> tuple[CommitOutcome, ...]:
        """Publish. Raises any error of the committer."""
        evidence = {
            "committables": ",".join(c.id for c in self._committables),
            "checkpoint": self._permit.checkpoint_id,
        }
        try:
            failpoints.hit("sink.before_publish", **evidence)
            outcomes = self._committers[0].commit(self._permit, self._committables, self._read)
            failpoints.hit("sink.after_commit", **evidence)
        finally:
            self._done = True
            if self._close:
                _close_one(self._committers)
        return outcomes

    def close_after(self) -> None:
        """Close the committer after this publication (each side sets its flag before it reads the other's)."""
        self._close = True
        if self._done:
            _close_one(self._committers)


def _close_one(committers: list[Committer]) -> None:
    try:
        committer = committers.pop()
    except IndexError:
        return
    committer.close()
