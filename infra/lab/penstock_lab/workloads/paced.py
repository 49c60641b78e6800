"""Any source at a steady rate: `PacedSource` emits its rows when they are due and records when they were due.

The due time of a row is not the time of its emission: a delayed source emits rows late, and that counts. Rows carry it
in a column `due` (`stamp`), or the progress of event time is recorded (`time`), for results that wait for a watermark.
`delays` has the counterpart, and reads the folder. Used by the latency benchmarks.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from penstock.connector.sink import load_factory
from penstock.connector.source import PollResult, SourceBatch, SourceSpec, SourceSplit, SplitPausingReader
from penstock.core.errors import GraphError
from penstock.core.schema import schema_from_text, schema_to_text
from penstock.core.structs import prepare
from penstock_lab.workloads.delays import Schedule, leave_schedule
from penstock_lab.workloads.marks import DUE

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.connector.source import SourceContext, SourceFactory, SourceReader, SplitEnumerator

#: Rows are emitted when this many milliseconds' worth of them are due (or one), as a consumer receives them from a
#: broker.
TICK_MS = 2.0
_MODULE = "penstock_lab.workloads.paced"
_LARGEST_POLL = 1 << 20

Int64s = np.ndarray[Any, np.dtype[np.int64]]


class Source(Protocol):
    """A source as a user configures it."""

    @property
    def row_schema(self) -> Any:
        """Return the row type or schema."""

    def spec(self) -> SourceSpec:
        """Return the source as a value."""


class _Config(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `SourceSpec.config`."""

    source: SourceSpec
    splits: int
    rate: float
    stamp: bool
    time: str
    folder: str


prepare(_Config)


@dataclass(frozen=True, kw_only=True)
class PacedSource:
    """The rows of `source`, which has `splits` splits; `rate` is in rows per second in total, 0 for no limit."""

    source: Source
    splits: int
    rate: float = 0.0
    #: Rows get a column `due`: microseconds of the host's monotonic clock.
    stamp: bool = True
    #: Column of event time (a timestamp, or milliseconds) whose progress is recorded; empty: none.
    time: str = ""
    #: Folder for one file per subtask (`delays.read_schedules`); empty: none.
    folder: str = ""

    @property
    def row_schema(self) -> Any:
        """Return the row type or schema of the source."""
        return self.source.row_schema

    def spec(self) -> SourceSpec:
        """Return the source as a value.

        Raises:
            GraphError: a number is out of range, or a column does not exist.
        """
        inner = self.source.spec()
        schema = schema_from_text(inner.schema)
        if self.splits < 1 or self.rate < 0:
            msg = f"PacedSource: {self.splits} splits at {self.rate} rows a second"
            raise GraphError(msg, hint="splits has to be at least 1; a rate of 0 means no limit")
        if self.time and self.time not in schema.names:
            msg = f"PacedSource: there is no column {self.time!r}"
            raise GraphError(msg, hint=f"columns: {', '.join(schema.names)}")
        if self.stamp:
            schema = schema.append(pa.field(DUE, pa.int64(), nullable=False))
        config = _Config(
            source=inner, splits=self.splits, rate=self.rate, stamp=self.stamp, time=self.time, folder=self.folder
        )
        return SourceSpec(
            factory=f"{_MODULE}:PacedSourceFactory",
            config=msgspec.to_builtins(config),
            schema=schema_to_text(schema),
            bounded=inner.bounded,
            discovery_interval_ms=inner.discovery_interval_ms,
            preload=[_MODULE, *inner.preload],
        )


class PacedSourceFactory:
    """Creates enumerator and reader from the spec: those of the source, with a rate limit in the reader."""

    def create_enumerator(self, spec: SourceSpec, *, first_run: bool) -> SplitEnumerator:
        """Return the source's enumerator."""
        factory, inner = _inner(spec)
        return factory.create_enumerator(inner, first_run=first_run)

    def create_reader(self, spec: SourceSpec, context: SourceContext) -> PacedReader:
        """Return a reader for one subtask."""
        factory, inner = _inner(spec)
        return PacedReader(msgspec.convert(spec.config, _Config), factory.create_reader(inner, context), context)

    def validate(self, spec: SourceSpec) -> None:
        """Validate the wrapped source."""
        factory, inner = _inner(spec)
        factory.validate(inner)


def _inner(spec: SourceSpec) -> tuple[SourceFactory, SourceSpec]:
    inner = msgspec.convert(spec.config, _Config).source
    factory: SourceFactory = load_factory(inner.factory)
    return factory, inner


@dataclass(slots=True)
class _Progress:
    """The progress of one split's event time: its maxima, and when those rows were due."""

    largest: int = -(1 << 63)
    times: list[Int64s] = field(default_factory=list)
    dues: list[Int64s] = field(default_factory=list)

    def add(self, times: Int64s, due: Int64s) -> None:
        """Record the rows of a batch that are later than all before."""
        heights = np.maximum.accumulate(times)
        if heights[-1] <= self.largest:
            return
        higher = heights > self.largest
        higher[1:] &= heights[1:] > heights[:-1]
        self.largest = int(heights[-1])
        self.times.append(heights[higher])
        self.dues.append(due[higher])


class PacedReader:
    """Emits the rows of a reader when they are due; the first row is due when it is found."""

    def __init__(self, config: _Config, reader: SourceReader, context: SourceContext) -> None:
        """Start; no row is due before there are splits."""
        self._config = config
        self._reader = reader
        self._context = context
        self._clock = context.clock
        self._splits = 0
        self._per_ms = 0.0
        #: When the first row since the last change of splits was due, and rows emitted since.
        self._begun: float | None = None
        self._given = 0
        self._first_ms: float | None = None
        self._last_ms = 0.0
        self._rows = 0
        self._progress: dict[str, _Progress] = {}
        self._schema: pa.Schema | None = None
        share = config.rate / config.splits / 1000
        self._ticker = _Ticker(context.wake, max(TICK_MS, 1 / share)) if share and context.wake is not None else None

    def add_splits(self, splits: tuple[SourceSplit, ...]) -> None:
        """Continue from the splits' positions, as if no time had passed."""
        self._splits += sum(not split.finished for split in splits)
        self._per_ms = self._config.rate / self._config.splits / 1000 * self._splits
        self._begun, self._given = None, 0
        self._reader.add_splits(splits)

    def poll(self, max_rows: int) -> PollResult:
        """Return the rows that are due and available."""
        now = self._clock.monotonic_ms()
        asked = min(max_rows, _LARGEST_POLL)
        due = asked
        if self._per_ms:
            due = 1 if self._begun is None else int((now - self._begun) * self._per_ms) + 1 - self._given
            if due <= 0:
                return PollResult(drained=True)
        found = self._reader.poll(min(due, asked))
        rows = sum(batch.data.num_rows for batch in found.batches)
        if rows:
            if self._begun is None:
                self._begun = now
            if self._first_ms is None:
                self._first_ms = now
            self._last_ms = now
        return PollResult(
            batches=tuple(self._stamped(batch, now) for batch in found.batches),
            finished=found.finished,
            caught_up=found.caught_up,
            metrics=found.metrics,
            drained=bool(self._per_ms) and rows >= due,
        )

    def pause_or_resume_splits(self, pause: tuple[str, ...], resume: tuple[str, ...]) -> None:
        """Forward to the source; the rate is that of all its splits together."""
        if isinstance(self._reader, SplitPausingReader):
            self._reader.pause_or_resume_splits(pause, resume)

    def snapshot(self) -> tuple[SourceSplit, ...]:
        """Return every split with its position."""
        return self._reader.snapshot()

    def notify_complete(self, splits: tuple[SourceSplit, ...]) -> None:
        """Forward to the source."""
        self._reader.notify_complete(splits)

    def close(self) -> None:
        """Write the schedule and stop the ticker."""
        if self._ticker is not None:
            self._ticker.close()
        self._reader.close()
        if self._config.folder and self._first_ms is not None:
            progress = {
                name: (np.concatenate(p.times).tobytes(), np.concatenate(p.dues).tobytes())
                for name, p in self._progress.items()
            }
            schedule = Schedule(
                rows=self._rows,
                first_ms=self._first_ms,
                last_ms=self._last_ms,
                wall_ms=self._clock.now_ms() - self._clock.monotonic_ms(),
                progress=progress,
            )
            leave_schedule(self._config.folder, self._context.subtask, schedule)

    def _stamped(self, batch: SourceBatch, now: float) -> SourceBatch:
        count = batch.data.num_rows
        # Without a rate the same work is done: it measures the highest rate of the job.
        begun, per_ms = (self._begun, self._per_ms) if self._per_ms and self._begun is not None else (now, 1e12)
        numbers = np.arange(self._given, self._given + count, dtype=np.float64)
        due = (np.minimum(begun + numbers / per_ms, now) * 1000).astype(np.int64)
        self._given += count
        self._rows += count
        if self._config.time and count:
            self._keep(batch, due)
        if not self._config.stamp:
            return batch
        if self._schema is None:
            self._schema = batch.data.schema.append(pa.field(DUE, pa.int64(), nullable=False))
        data = pa.RecordBatch.from_arrays([*batch.data.columns, pa.array(due)], schema=self._schema)
        return SourceBatch(data, batch.split_ids, batch.split_index, batch.dead_letters)

    def _keep(self, batch: SourceBatch, due: Int64s) -> None:
        column = batch.data.column(self._config.time)
        times = column.view(pa.int64()).to_numpy() if pa.types.is_timestamp(column.type) else column.to_numpy() * 1000
        for number, name in enumerate(batch.split_ids):
            rows: Any = slice(None) if batch.split_index is None else np.flatnonzero(batch.split_index == number)
            if len(times[rows]):
                self._progress.setdefault(name, _Progress()).add(times[rows], due[rows])


class _Ticker:
    """Wakes a subtask periodically, as the arrival of messages would."""

    def __init__(self, wake: Callable[[], None], tick_ms: float) -> None:
        self._wake = wake
        self._tick_seconds = tick_ms / 1000
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ps-ticker", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closing.wait(self._tick_seconds):
            self._wake()

    def close(self) -> None:
        """Stop the thread."""
        self._closing.set()
        self._thread.join(1.0)
