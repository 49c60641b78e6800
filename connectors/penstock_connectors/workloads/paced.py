"""Source and sink of the latency benchmark: rows that carry the moment they were due, and a histogram of their delays.

`PacedSource` makes rows at a steady rate, each stamped with the moment it was due (not the moment it was made: a
source that is held up makes rows late, and that counts). `DelaySink` subtracts the stamp from the moment a row arrives,
both on the host's monotonic clock, and leaves a histogram when it is closed.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa

from penstock.connector.sink import SinkSpec
from penstock.connector.source import PollResult, SourceBatch, SourceSpec, SourceSplit
from penstock.core.errors import GraphError
from penstock.core.schema import schema_to_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.connector.sink import SinkContext
    from penstock.connector.source import SourceContext
    from penstock.core.snapshot import Committable

#: Rows are made when this many milliseconds' worth of them are due (or one), as a consumer gets them from a broker.
TICK_MS = 2.0
#: Resolution and length of the histogram; delays beyond it count as the last bin.
BIN_US, BINS = 100, 100_000
_SCHEMA = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in ("user_id", "amount", "due")])
_MODULE = "penstock_connectors.workloads.paced"
_KEYS = 100_003


class _SourceConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What travels in `SourceSpec.config`."""

    rows: int
    splits: int
    rate: float


class Delays(msgspec.Struct, frozen=True, kw_only=True):
    """What one subtask of the sink saw."""

    rows: int
    #: Monotonic milliseconds of the first and last arrival.
    first_ms: float
    last_ms: float
    largest_us: int
    #: Rows whose delay is in bin i; none of those that were due while the job settled.
    counts: list[int]
    beside: bool


@dataclass(frozen=True, kw_only=True)
class PacedSource:
    """Rows (`user_id`, `amount`, `due`); `rate` rows a second in all, 0: as fast as they are taken."""

    rows: int
    splits: int = 2
    rate: float = 0.0

    @property
    def row_schema(self) -> pa.Schema:
        """Schema of the rows; `due` in microseconds of the monotonic clock."""
        return _SCHEMA

    def spec(self) -> SourceSpec:
        """Return the source as a value.

        Raises:
            GraphError: a number that makes no sense.
        """
        if self.rows < 1 or self.splits < 1 or self.rate < 0:
            msg = f"PacedSource: {self.rows} rows in {self.splits} splits at {self.rate} a second"
            raise GraphError(msg, hint="rows and splits are at least 1, a rate of 0 is none")
        config = _SourceConfig(rows=self.rows, splits=self.splits, rate=self.rate)
        return SourceSpec(
            factory=f"{_MODULE}:PacedSourceFactory",
            config=msgspec.to_builtins(config),
            schema=schema_to_text(_SCHEMA),
            bounded=True,
            preload=[_MODULE],
        )


class PacedSourceFactory:
    """Makes enumerator and reader from the spec."""

    def create_enumerator(self, spec: SourceSpec, *, first_run: bool) -> PacedEnumerator:
        """Return the enumerator; the splits are the same in every run."""
        del first_run
        return PacedEnumerator(msgspec.convert(spec.config, _SourceConfig).splits)

    def create_reader(self, spec: SourceSpec, context: SourceContext) -> PacedReader:
        """Return a reader for one subtask."""
        return PacedReader(msgspec.convert(spec.config, _SourceConfig), context)

    def validate(self, spec: SourceSpec) -> None:
        """Check the config's form; there is nothing outside to reach."""
        msgspec.convert(spec.config, _SourceConfig)


class PacedEnumerator:
    """Lists the splits: `paced-0` and so on."""

    def __init__(self, splits: int) -> None:
        self._splits = splits

    def discover(self, known: frozenset[str]) -> tuple[SourceSplit, ...]:
        """Return the splits not in `known`."""
        ids = [f"paced-{index}" for index in range(self._splits)]
        return tuple(SourceSplit(id=split_id, state={"position": 0}) for split_id in ids if split_id not in known)

    def close(self) -> None:
        """Nothing to free."""


class PacedReader:
    """Makes the rows of its splits that are due."""

    def __init__(self, config: _SourceConfig, context: SourceContext) -> None:
        self._share = -(-config.rows // config.splits)
        self._per_ms = config.rate / config.splits / 1000
        self._clock = context.clock
        self._positions: dict[str, int] = {}
        self._begun: dict[str, float] = {}
        tick_ms = max(TICK_MS, 1 / self._per_ms) if self._per_ms else 0.0
        self._ticker = _Ticker(context.wake, tick_ms) if tick_ms and context.wake is not None else None

    def add_splits(self, splits: tuple[SourceSplit, ...]) -> None:
        """Continue from the splits' positions, as if no time had passed since."""
        now = self._clock.monotonic_ms()
        for split in splits:
            position = int(split.state["position"])
            self._positions[split.id] = position
            self._begun[split.id] = now - position / self._per_ms if self._per_ms else now

    def poll(self, max_rows: int) -> PollResult:
        """Make what is due of every split."""
        now = self._clock.monotonic_ms()
        batches, finished = [], []
        for split_id, position in self._positions.items():
            due = int((now - self._begun[split_id]) * self._per_ms) - position if self._per_ms else max_rows
            count = min(due, max_rows, self._share - position)
            if count > 0:
                batches.append(SourceBatch(self._make(split_id, position, count, now), (split_id,)))
                self._positions[split_id] = position + count
            if self._positions[split_id] >= self._share:
                finished.append(split_id)
        return PollResult(tuple(batches), tuple(finished), drained=bool(self._per_ms))

    def snapshot(self) -> tuple[SourceSplit, ...]:
        """Return every split with its position."""
        return tuple(
            SourceSplit(id=split_id, state={"position": position}, finished=position >= self._share)
            for split_id, position in self._positions.items()
        )

    def notify_complete(self, splits: tuple[SourceSplit, ...]) -> None:
        """Nothing outside wants to know."""

    def close(self) -> None:
        """End the ticker."""
        if self._ticker is not None:
            self._ticker.close()

    def _make(self, split_id: str, position: int, count: int, now: float) -> pa.RecordBatch:
        numbers = np.arange(position, position + count, dtype=np.int64)
        # The same work without a rate: what the job can take at most is measured with it.
        begun, per_ms = (self._begun[split_id], self._per_ms) if self._per_ms else (now, 1e12)
        due = ((begun + numbers / per_ms) * 1000).astype(np.int64)
        keys = numbers * 7919 % _KEYS
        return pa.RecordBatch.from_arrays([pa.array(column) for column in (keys, numbers & 1023, due)], schema=_SCHEMA)


class _Ticker:
    """Wakes a subtask again and again, as the arrival of messages would."""

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
        """End the thread."""
        self._closing.set()
        self._thread.join(1.0)


class _SinkConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What travels in `SinkSpec.config`."""

    folder: str
    settle_ms: float
    beside: bool


@dataclass(frozen=True, kw_only=True)
class DelaySink:
    """Counts delays by size; `folder` gets one file a subtask (`read_delays` reads them)."""

    folder: str
    #: Rows due within so many milliseconds of the first arrival are not counted.
    settle_ms: float = 2000.0
    #: Stands in what is left: these rows are load, their delays are not asked for.
    beside: bool = False

    def spec(self, input_schema: pa.Schema) -> SinkSpec:
        """Return the sink as a value.

        Raises:
            GraphError: the rows carry no `due`.
        """
        if "due" not in input_schema.names:
            raise GraphError("DelaySink: there is no column `due`", hint="keep the one of PacedSource")
        return SinkSpec(
            factory=f"{_MODULE}:DelaySinkFactory",
            config=msgspec.to_builtins(_SinkConfig(folder=self.folder, settle_ms=self.settle_ms, beside=self.beside)),
            delivery="at-least-once",
            schema=schema_to_text(input_schema),
            preload=[_MODULE],
        )


class DelaySinkFactory:
    """Makes the writer from the spec."""

    def create_writer(self, spec: SinkSpec, context: SinkContext) -> DelayWriter:
        """Return the writer of one subtask."""
        return DelayWriter(msgspec.convert(spec.config, _SinkConfig), context)

    def create_committer(self, spec: SinkSpec, context: SinkContext) -> None:
        """Return None: nothing is committed."""

    def validate(self, spec: SinkSpec, checkpoint_interval_ms: int | None) -> None:
        """Check the config's form; the folder is the benchmark's own."""
        del checkpoint_interval_ms
        msgspec.convert(spec.config, _SinkConfig)


class DelayWriter:
    """The histogram of one subtask."""

    def __init__(self, config: _SinkConfig, context: SinkContext) -> None:
        self._config = config
        self._context = context
        self._counts = np.zeros(BINS, np.int64)
        self._rows = self._largest_us = 0
        self._first_ms = self._last_ms = -1.0

    def write(self, batch: pa.RecordBatch) -> None:
        """Count rows."""
        now = self._context.clock.monotonic_ms()
        if self._first_ms < 0:
            self._first_ms = now
        self._last_ms = now
        self._rows += batch.num_rows
        due = batch.column("due").to_numpy()
        delays = int(now * 1000) - due[due >= (self._first_ms + self._config.settle_ms) * 1000]
        if len(delays):
            self._largest_us = max(self._largest_us, int(delays.max()))
            self._counts += np.bincount(np.clip(delays // BIN_US, 0, BINS - 1), minlength=BINS)

    def prepare_commit(self, checkpoint_id: int) -> tuple[Committable, ...]:
        """Nothing is held back."""
        del checkpoint_id
        return ()

    def close(self) -> None:
        """Leave the histogram."""
        folder = Path(self._config.folder)
        folder.mkdir(parents=True, exist_ok=True)
        found = Delays(
            rows=self._rows, first_ms=self._first_ms, last_ms=self._last_ms, largest_us=self._largest_us,
            counts=self._counts.tolist(), beside=self._config.beside,
        )  # fmt: skip
        (folder / f"delays-{self._context.subtask}").write_bytes(msgspec.msgpack.encode(found))


def read_delays(folder: str | os.PathLike[str]) -> tuple[Delays, ...]:
    """Return what the sink's subtasks left."""
    return tuple(
        msgspec.msgpack.decode(path.read_bytes(), type=Delays) for path in sorted(Path(folder).glob("delays-*"))
    )
