"""The head of a source chain: polls a connector's reader, assigns event time, keeps watermarks by split.

The task loop calls `poll` instead of passing input. A reader that is fastest with small reads (Kafka's keeps its
messages in the CPU cache) is polled several times, and its batches are emitted as one: after the source each has a
fixed cost.

A checkpoint contains the splits with the reader's positions and
each split's watermark, so a row is late after a restore exactly if it was late before.
"""

# ruff: noqa: ARG002 - the protocol sets the parameters of hooks

from __future__ import annotations

import logging
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa

from penstock.connector.sink import load_factory
from penstock.connector.source import (
    BadRecord,
    PollResult,
    SourceBatch,
    SourceContext,
    SourceFactory,
    SourceReader,
    SourceSpec,
    SourceSplit,
    SplitPausingReader,
)
from penstock.connector.staging import DEAD_LETTER_SCHEMA, DEAD_LETTER_TAG, dead_letters
from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, Batch, Watermark, WatermarkStatus
from penstock.core.errors import BadRecordError
from penstock.core.schema import schema_from_text
from penstock.core.secrets import redact
from penstock.core.snapshot import OperatorStateSnapshot
from penstock.core.views import bytes_without_pools, is_view
from penstock.eventtime.split_watermarks import SplitAlignment, SplitWatermarks
from penstock.eventtime.strategy import (
    ALIGNMENT_METRIC,
    PLAUSIBLE_FROM_US,
    PLAUSIBLE_UNTIL_US,
    strategy_from_builtins,
)
from penstock.kernels.rows.row_filter import filter_rows
from penstock.operators.operator import Capabilities, Operator, OperatorSnapshot
from penstock.operators.rows.columns import conform, with_ts
from penstock.operators.sources.source_watermarks import (
    IngestionTime,
    TimestampColumn,
    advance,
    emit_exact,
    source_watermarks,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.core.elements import Barrier
    from penstock.core.permits import CommitPermit
    from penstock.operators.operator import Collector, OperatorContext
    from penstock.operators.sources.source_watermarks import Bools, Int64s, SourceWatermarks

BadRecordPolicy = Literal["fail", "skip", "dead-letter"]

#: Rows requested from the reader in one poll: enough for kernels, few enough for a barrier to wait only milliseconds.
POLL_ROWS = 65_536
#: Batches up to this total size are concatenated: the copy is cheap.
CONCATENATE_BYTES = 1 << 20
#: A reader that returned this many rows is polled again at once.
POLL_AGAIN_ROWS = 4096
#: A function that returns a batch's size in bytes.
Size = Callable[[pa.RecordBatch], int]
_WHOLE: Size = attrgetter("nbytes")
#: Names of the saved states.
SPLITS_STATE = "splits"
WATERMARK_STATE = "watermark"
#: Name of the text about the first bad record.
BAD_RECORD_TEXT = "badRecord"


class SourceOperator(Operator):
    """Polls splits, emits batches, watermarks and statuses."""

    _reader: SourceReader | None = None

    def open(self, context: OperatorContext) -> Capabilities:
        self._context = context
        spec = msgspec.convert(context.spec.config["source"], SourceSpec)
        self._spec = spec
        #: Rows to request from the reader in one poll; the task reduces it before row functions.
        self.poll_rows = POLL_ROWS
        self._where = f"source {context.spec.uid!r}"
        self._policy = bad_record_policy(spec)
        self._schema = schema_from_text(spec.schema)
        self._out_schema = with_ts(self._schema)
        self._bytes_of = size_function(self._schema)
        self._strategy = strategy_from_builtins(context.spec.config.get("watermarks"))
        floor = _restored_floor(context.restored)
        self._watermarks = SplitWatermarks(self._strategy.idle_timeout_ms, floor)
        self._open_event_time(context, floor)
        self._positions: dict[int, tuple[SourceSplit, ...]] = {}
        self._known: set[str] = set()
        self._unfinished: set[str] = set()
        self._assigned = self._no_more = self._ended = self._suspended = self._idle = self._drained = False
        grouped = bool(self._strategy.alignment_group)
        self._aligned = SplitAlignment(self._strategy.max_drift_ms * 1000) if grouped else None
        self._floor_due = self._watermarks.combined > MIN_TIMESTAMP
        factory: SourceFactory = load_factory(spec.factory)
        self._reader = factory.create_reader(
            spec,
            SourceContext(
                subtask=context.subtask,
                parallelism=context.parallelism,
                job_name=context.job_name,
                uid=context.spec.uid,
                clock=context.clock,
                wake=context.wake,
                run_waiting=context.run_waiting,
            ),
        )
        self._pausing = self._reader if isinstance(self._reader, SplitPausingReader) else None
        for state in context.restored:
            if state.mode == "split" and state.items:
                self.add_splits(state.items, no_more=False)
        return Capabilities(source=self, split_watermarks=self.split_watermarks)

    def _open_event_time(self, context: OperatorContext, floor: int) -> None:
        strategy = self._strategy
        self._times: TimestampColumn | None = None
        self._progress: SourceWatermarks | None = None
        if not strategy.has_event_time:
            return
        strategy.validate(tuple(self._schema.names))
        if strategy.timestamp:
            self._times = TimestampColumn(strategy.timestamp, strategy.unit, self._schema)
        self._progress = source_watermarks(strategy, context.spec.payload, context, self._where, floor)

    # --- calls from the job and the task ------------------------------------------------------------------------------

    def add_splits(self, splits: Iterable[Any], *, no_more: bool) -> None:
        """Start reading these splits (values or their builtins); ids already known are ignored."""
        parsed = [s if isinstance(s, SourceSplit) else msgspec.convert(s, SourceSplit) for s in splits]
        fresh = tuple(split for split in parsed if split.id not in self._known)
        for split in fresh:
            self._known.add(split.id)
            self._watermarks.add(split.id, split.watermark, finished=split.finished)
            if not split.finished:
                self._unfinished.add(split.id)
        self._assigned = True
        self._no_more = self._no_more or no_more
        if fresh and self._reader is not None:
            self._reader.add_splits(fresh)

    def suspend(self) -> None:
        """Stop emitting rows."""
        self._suspended = True

    def align(self, limit: int) -> None:
        """Wait while the watermark is above `limit` (us)."""
        if self._aligned is not None:
            self._aligned.limit = limit

    def split_watermarks(self) -> SplitWatermarks | None:
        """The watermarks of its splits; None without event time."""
        return self._watermarks if self._strategy.has_event_time else None

    @property
    def drained(self) -> bool:
        """Whether the last poll took all available rows."""
        return self._drained

    @property
    def finished(self) -> bool:
        """Whether all splits were read and the watermark at the end of time was emitted."""
        return self._ended

    def process_batch(self, batch: Batch, input_index: int, out: Collector) -> None:
        msg = f"{self._where} has no input"
        raise TypeError(msg)

    # --- reading ---------------------------------------------------------------------------------------------------

    def poll(self, out: Collector, *, backpressured: bool) -> bool:
        """Emit the rows of one poll of the reader, then the minimum watermark if it advanced."""
        if self._ended or self._suspended or self._reader is None:
            return False
        now = self._context.clock.monotonic_ms()
        if backpressured or (self._aligned is not None and self._aligned.pauses_subtask(self._watermarks.combined)):
            self._watermarks.advance_time(now, (), backpressured=True)
            return False
        emitted = self._emit_floor(out)
        try:
            results = poll_batches(self._reader, self.poll_rows, self._bytes_of)
        except BadRecordError as error:
            self._count("badRecords", error.records)
            self._note_bad_record(BadRecord(error.where, error.values))
            raise
        self._drained = results[-1].drained
        for batch in concatenate_batches([batch for result in results for batch in result.batches], self._bytes_of):
            emitted |= self._emit(batch, out)
        for result in results:
            self._take_progress(result, now)
        emitted |= self._emit_progress(out)
        return emitted | self._emit_end(out)

    def _take_progress(self, result: PollResult, now: float) -> None:
        for split_id in result.finished:
            self._watermarks.finish(split_id)
            self._unfinished.discard(split_id)
        paused = frozenset() if self._aligned is None else self._aligned.paused
        self._watermarks.advance_time(now, frozenset(result.caught_up) - paused, backpressured=False)
        self._context.metrics.extra.update(result.metrics)
        if result.bad_record is not None:
            self._note_bad_record(result.bad_record)

    def _emit(self, source: SourceBatch, out: Collector) -> bool:
        if source.dead_letters is not None and source.dead_letters.num_rows:
            self._dead_letters(source.dead_letters, out)
        if source.data.num_rows == 0:
            return False
        data = conform(source.data, self._schema, self._where)
        index = source.split_index
        if self._progress is None:
            out.batch(Batch(data))
            return True
        if self._times is None:
            assert isinstance(self._progress, IngestionTime)  # noqa: S101 - the one strategy without a time column
            times = self._progress.stamp(data.num_rows)
        else:
            times, bad = self._times.read(data)
            if bad is not None:
                self._bad_times(source, bad, out)
                good = ~bad
                data, times = filter_rows(data, good), times[good]
                index = None if index is None else index[good]
                if data.num_rows == 0:
                    return False
            self._count_implausible(times)
        for split_id in source.split_ids:
            self._watermarks.active(split_id)
        self._set_idle(out, idle=False)
        timed = pa.RecordBatch.from_arrays([*data.columns, pa.array(times)], schema=self._out_schema)
        origin = (source.split_ids, index)
        if self._strategy.exact:
            emit_exact((timed, times), origin, self._progress, self._watermarks, out)
            return True
        watermarks = self._progress.after(timed, times, origin)  # before the chain evicts the times from the CPU cache
        out.batch(Batch(timed))
        advance(self._watermarks, origin, watermarks)
        return True

    # --- watermarks and status -------------------------------------------------------------------------------------

    def _emit_floor(self, out: Collector) -> bool:
        """Emit the watermark that was emitted before a restore, so that lateness downstream stays the same."""
        if not self._floor_due:
            return False
        self._floor_due = False
        out.watermark(Watermark(self._watermarks.combined))
        return True

    def _emit_progress(self, out: Collector) -> bool:
        if self._progress is None or not self._assigned:
            return False
        for split_id, mark in self._progress.between(self._unfinished):
            self._watermarks.advance(split_id, mark)
        idle = self._watermarks.idle
        if not idle:
            self._set_idle(out, idle=False)
        watermark = self._watermarks.take_advance()
        if watermark is not None:
            out.watermark(Watermark(watermark))
        if idle and not (self._no_more and not self._unfinished):
            self._set_idle(out, idle=True)
        if self._aligned is not None:
            own = MAX_TIMESTAMP if idle else self._watermarks.combined
            self._context.metrics.extra[ALIGNMENT_METRIC] = float(own)
            self._align_splits(self._aligned)
        return watermark is not None

    def _align_splits(self, aligned: SplitAlignment) -> None:
        if self._pausing is None:
            return  # the whole subtask waits
        pause, resume = aligned.pause_changes(self._watermarks.unfinished, self._watermarks.combined)
        if pause or resume:
            self._pausing.pause_or_resume_splits(pause, resume)

    def _set_idle(self, out: Collector, *, idle: bool) -> None:
        if idle != self._idle:
            self._idle = idle
            out.status(WatermarkStatus(idle))

    def _emit_end(self, out: Collector) -> bool:
        if not self._no_more or self._unfinished:
            return False
        self._set_idle(out, idle=False)
        out.watermark(Watermark(MAX_TIMESTAMP))
        self._ended = True
        return True

    def _count_implausible(self, times: Int64s) -> None:
        """Count rows before 1990, if all of a batch are, and rows after 2100: probably a wrong unit."""
        latest = int(times.max())
        if latest >= PLAUSIBLE_UNTIL_US:
            self._note_implausible("distantTimestamp", "late", int((times >= PLAUSIBLE_UNTIL_US).sum()), latest // 1000)
        elif latest < PLAUSIBLE_FROM_US:
            self._note_implausible("oldTimestamp", "early", len(times), latest // 1000)

    def _note_implausible(self, metric: str, how: str, rows: int, example_ms: int) -> None:
        assert self._times is not None  # noqa: S101 - only called with event time
        extra = self._context.metrics.extra
        if f"{metric}s" not in extra:
            text = "%s: event time %r of rows is as %s as %d ms after 1970: are its numbers of another unit?"
            logging.getLogger(__name__).warning(text, self._where, self._times.name, how, example_ms)
        self._count(f"{metric}s", rows)
        extra[f"{metric}Ms"] = float(example_ms)

    # --- bad records -----------------------------------------------------------------------------------------------

    def _note_bad_record(self, record: BadRecord) -> None:
        """Publish the first bad record, for every page and command that shows the job."""
        texts = self._context.metrics.texts
        if BAD_RECORD_TEXT not in texts:
            shown = f"; {record.value}" if self._context.settings.show_values_in_errors else ""
            texts[BAD_RECORD_TEXT] = redact(f"{record.where}{shown}")

    def _bad_times(self, source: SourceBatch, bad: Bools, out: Collector) -> None:
        assert self._times is not None  # noqa: S101 - only called with event time
        rows = np.flatnonzero(bad)
        self._count("badTimestamps", len(rows))
        first = int(rows[0])
        split = source.split_ids[0 if source.split_index is None else int(source.split_index[first])]
        name = self._times.name
        values = self._times.raw(source.data)
        value = values[first].as_py()
        error = f"event time {name!r} is null or outside the years 1 to 9999"
        record = BadRecord(f"{error} (in {split})", f"value: {value}")
        self._note_bad_record(record)
        if self._policy == "fail":
            hint = f"{self._times.unit_hint(value)}set on_bad_record='skip' or 'dead-letter'"
            raise BadRecordError(f"{self._where}: {record.where}", hint=hint, values=record.value)
        if self._policy == "dead-letter":
            # as plain numbers: a time outside the calendar has no text form
            raw = source.data.set_column(source.data.schema.get_field_index(name), name, values)
            taken = filter_rows(raw, bad)
            lines = pl.DataFrame(pl.from_arrow(taken)).write_ndjson().encode().splitlines()
            index = np.zeros(len(rows), np.int64) if source.split_index is None else source.split_index[rows]
            splits = [source.split_ids[i] for i in index.tolist()]
            self._dead_letters(dead_letters(value=lines, topic=splits, error=[error] * len(rows)), out)

    def _dead_letters(self, letters: pa.RecordBatch, out: Collector) -> None:
        self._count("deadLetters", letters.num_rows)
        for field in DEAD_LETTER_SCHEMA:  # a connector may omit unknown values
            if field.nullable and field.name not in letters.schema.names:
                letters = letters.append_column(field, pa.nulls(letters.num_rows, field.type))
        out.side(DEAD_LETTER_TAG, Batch(conform(letters, DEAD_LETTER_SCHEMA, self._where)))

    def _count(self, name: str, rows: int) -> None:
        extra = self._context.metrics.extra
        extra[name] = extra.get(name, 0.0) + rows

    # --- checkpoints -----------------------------------------------------------------------------------------------

    def snapshot(self, barrier: Barrier, out: Collector) -> OperatorSnapshot:
        if self._reader is None:
            return OperatorSnapshot()
        splits = tuple(
            msgspec.structs.replace(
                split,
                watermark=self._watermarks.watermark_of(split.id),
                finished=split.finished or split.id not in self._unfinished,
            )
            for split in self._reader.snapshot()
        )
        self._positions[barrier.checkpoint_id] = splits
        uid = self._context.spec.uid
        items = tuple(msgspec.to_builtins(split) for split in splits)
        states = [OperatorStateSnapshot(uid=uid, name=SPLITS_STATE, mode="split", items=items)]
        if not self._idle and not self._ended:
            # Also before its first watermark: then none was emitted downstream, even if other subtasks are ahead.
            floor = (self._watermarks.combined,)
            states.append(OperatorStateSnapshot(uid=uid, name=WATERMARK_STATE, mode="union", items=floor))
        return OperatorSnapshot(operator=tuple(states))

    def notify_complete(self, permit: CommitPermit) -> None:
        if permit.run_id != self._context.run_id:
            return
        splits = self._positions.pop(permit.checkpoint_id, None)
        for older in [c for c in self._positions if c < permit.checkpoint_id]:
            del self._positions[older]
        if splits and self._reader is not None:
            self._reader.notify_complete(splits)

    def notify_aborted(self, checkpoint_id: int) -> None:
        self._positions.pop(checkpoint_id, None)

    def close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()


def bad_record_policy(spec: SourceSpec) -> BadRecordPolicy:
    """Return the source's policy for bad records: `on_bad_record` of its config, by default `fail`."""
    policy: BadRecordPolicy = spec.config.get("on_bad_record", "fail")
    return policy


def _restored_floor(restored: tuple[OperatorStateSnapshot, ...]) -> int:
    """Return the lowest watermark that any active subtask had emitted: the watermark that the next operators saw.

    A single subtask's would be wrong: splits may have moved to it from one with a lower watermark.
    """
    emitted = [int(item) for state in restored if state.name == WATERMARK_STATE for item in state.items]
    return min(emitted, default=MIN_TIMESTAMP)


def size_function(schema: pa.Schema) -> Size:
    """Return a function that measures batches of `schema`; it excludes the pools of view columns."""
    return bytes_without_pools if any(map(is_view, schema.types)) else _WHOLE


def poll_batches(reader: SourceReader, rows: int, bytes_of: Size = _WHOLE) -> list[PollResult]:
    """Poll for about `rows` rows, repeatedly while the reader has more and the batches fit together."""
    results: list[PollResult] = []
    size = 0
    while True:
        result = reader.poll(rows)
        results.append(result)
        given = sum(batch.data.num_rows for batch in result.batches)
        rows -= given
        if given < POLL_AGAIN_ROWS or rows < given or result.drained:
            return results
        own = sum(bytes_of(batch.data) for batch in result.batches)
        size += own
        if size + own > CONCATENATE_BYTES:
            return results


def concatenate_batches(
    batches: Sequence[SourceBatch], bytes_of: Size = _WHOLE, most_bytes: int = CONCATENATE_BYTES
) -> Iterable[SourceBatch]:
    """Return the same rows in the same order, in fewer batches; one with dead letters stays separate."""
    if len(batches) <= 1:
        return batches
    groups: list[list[SourceBatch]] = []
    size = 0
    for batch in batches:
        own = bytes_of(batch.data) if batch.dead_letters is None else most_bytes + 1
        if groups and size + own <= most_bytes and batch.data.schema.equals(groups[-1][0].data.schema):
            groups[-1].append(batch)
            size += own
        else:
            groups.append([batch])
            size = own
    return [group[0] if len(group) == 1 else _merged(group) for group in groups]


def _merged(group: list[SourceBatch]) -> SourceBatch:
    places: dict[str, int] = {}
    for batch in group:
        for split_id in batch.split_ids:
            places.setdefault(split_id, len(places))
    data = pa.concat_batches([batch.data for batch in group])
    if len(places) == 1:
        return SourceBatch(data, tuple(places))
    index = [_index(batch, places) for batch in group]
    return SourceBatch(data, tuple(places), np.concatenate(index))


def _index(batch: SourceBatch, places: dict[str, int]) -> np.ndarray[Any, Any]:
    own = np.array([places[split_id] for split_id in batch.split_ids], np.int64)
    return np.full(batch.data.num_rows, own[0]) if batch.split_index is None else np.take(own, batch.split_index)
