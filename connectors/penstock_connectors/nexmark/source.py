"""The generator as a source: `NexmarkSource` for users, its enumerator and reader for the runtime.

A split's position is the number of its next row. Splits are generated evenly so that their event times advance
together; a rate limit counts from the row at which a reader started, with the injected clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from penstock.connector.source import PollResult, SourceBatch, SourceSpec, SourceSplit
from penstock.core.errors import GraphError
from penstock.core.schema import schema_to_text
from penstock_connectors.nexmark.events import SCHEMAS, EventMaker, Kind, NexmarkPattern
from penstock_connectors.workloads.marks import first_record

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.connector.source import SourceContext
    from penstock.core.clock import Clock

_FACTORY = "penstock_connectors.nexmark.source:NexmarkSourceFactory"
_PRELOAD = "penstock_connectors.nexmark.source"


class _Config(msgspec.Struct, frozen=True, kw_only=True):
    """What travels in `SourceSpec.config`."""

    pattern: NexmarkPattern
    #: Events of the whole stream, of all kinds; None = without end.
    events: int | None = None
    #: Events of the whole stream per second of real time; None = as fast as they are taken.
    events_per_second: int | None = None
    #: Folder that is told when a reader made its first row.
    marks: str = ""

    def rows_of(self, split: int) -> int | None:
        """Rows of one split."""
        return None if self.events is None else self.pattern.rows(self.events, split)


@dataclass(frozen=True, kw_only=True)
class NexmarkSource:
    """Events of one kind of a Nexmark stream; `events` counts the stream's events of all kinds, bounded when given."""

    events: int | None = None
    kind: Kind = "bid"
    #: Columns to generate; None = all of the kind.
    columns: Sequence[str] | None = None
    splits: int = 4
    #: Events per second of event time.
    rate: int = 10_000
    start_us: int = 1_700_000_000_000_000
    hot_auction_ratio: int = 2
    hot_bidder_ratio: int = 4
    hot_seller_ratio: int = 4
    auctions_in_flight: int = 100
    active_people: int = 1000
    #: Events per second of real time; None = as fast as they are taken.
    events_per_second: int | None = None
    seed: int = 0
    #: For benchmarks: a folder that is told when the first row is made.
    marks: str = ""

    @property
    def row_schema(self) -> pa.Schema:
        """Schema of the rows."""
        return self.pattern().schema

    def pattern(self) -> NexmarkPattern:
        """Return what the events look like.

        Raises:
            GraphError: an unknown kind or column, or a number that makes no sense.
        """
        if self.kind not in SCHEMAS:
            msg = f"NexmarkSource: there is no kind {self.kind!r}"
            raise GraphError(msg, hint=f"there are: {', '.join(SCHEMAS)}")
        known, columns = SCHEMAS[self.kind].names, tuple(self.columns or ())
        for name in columns:
            if name not in known or columns.count(name) > 1:
                msg = f"NexmarkSource: column {name!r} is {'given twice' if name in known else 'unknown'}"
                raise GraphError(msg, hint=f"a {self.kind} has: {', '.join(known)}")
        counts = ("splits", "rate", "hot_auction_ratio", "hot_bidder_ratio", "hot_seller_ratio")
        for name in (*counts, "auctions_in_flight", "active_people", "events_per_second"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                msg = f"NexmarkSource: {name} must be at least 1, not {getattr(self, name)}"
                raise GraphError(msg, hint="leave it out for the default")
        if self.events is not None and self.events < 0:
            msg = f"NexmarkSource: events must not be {self.events}"
            raise GraphError(msg, hint="leave it out for a stream without end")
        return NexmarkPattern(
            kind=self.kind,
            columns=columns,
            splits=self.splits,
            rate=self.rate,
            start_us=self.start_us,
            hot_auction_ratio=self.hot_auction_ratio,
            hot_bidder_ratio=self.hot_bidder_ratio,
            hot_seller_ratio=self.hot_seller_ratio,
            auctions_in_flight=self.auctions_in_flight,
            active_people=self.active_people,
            seed=self.seed,
        )

    def spec(self) -> SourceSpec:
        """Return the source as a value.

        Raises:
            GraphError: see `pattern`.
        """
        pattern = self.pattern()
        config = _Config(
            pattern=pattern, events=self.events, events_per_second=self.events_per_second, marks=self.marks
        )
        return SourceSpec(
            factory=_FACTORY,
            config=msgspec.to_builtins(config),
            schema=schema_to_text(pattern.schema),
            bounded=self.events is not None,
            preload=[_PRELOAD],
        )


class NexmarkSourceFactory:
    """Makes enumerator and reader from the spec."""

    def create_enumerator(self, spec: SourceSpec, *, first_run: bool) -> NexmarkEnumerator:
        """Return the enumerator; the splits are the same in every run."""
        del first_run
        return NexmarkEnumerator(msgspec.convert(spec.config, _Config))

    def create_reader(self, spec: SourceSpec, context: SourceContext) -> NexmarkReader:
        """Return a reader for one subtask."""
        return NexmarkReader(msgspec.convert(spec.config, _Config), context)

    def validate(self, spec: SourceSpec) -> None:
        """Check the config's form; there is nothing outside to reach."""
        msgspec.convert(spec.config, _Config)


class NexmarkEnumerator:
    """Lists the generator's splits: `nexmark-0` and so on."""

    def __init__(self, config: _Config) -> None:
        self._config = config

    def discover(self, known: frozenset[str]) -> tuple[SourceSplit, ...]:
        """Return the splits not in `known`."""
        ids = [(f"nexmark-{index}", index) for index in range(self._config.pattern.splits)]
        return tuple(
            SourceSplit(id=split_id, state={"index": index, "position": 0})
            for split_id, index in ids
            if split_id not in known
        )

    def close(self) -> None:
        """Nothing to free."""


@dataclass(slots=True)
class _Progress:
    index: int
    position: int
    end: int | None
    #: Where and when this reader began, for the rate limit.
    began_at: int
    began_ms: float
    finished: bool = False


class NexmarkReader:
    """Generates the rows of its splits; position = the next row's number within the split."""

    def __init__(self, config: _Config, context: SourceContext) -> None:
        self._config = config
        self._clock: Clock = context.clock
        self._subtask = context.subtask
        self._marked = not config.marks
        self._maker = EventMaker(config.pattern)
        self._splits: dict[str, _Progress] = {}

    def add_splits(self, splits: tuple[SourceSplit, ...]) -> None:
        """Start from the splits' positions."""
        now = self._clock.monotonic_ms()
        for split in splits:
            position, index = int(split.state["position"]), int(split.state["index"])
            end = self._config.rows_of(index)
            self._splits[split.id] = _Progress(index, position, end, position, now, finished=split.finished)

    def poll(self, max_rows: int) -> PollResult:
        """Generate up to `max_rows` rows, an even share of each split."""
        active = [(split_id, p) for split_id, p in self._splits.items() if not p.finished]
        if not active:
            return PollResult()
        if not self._marked:
            self._marked = True
            first_record(self._config.marks, self._subtask, self._clock.now_ms())
        now = self._clock.monotonic_ms()
        share = max(1, max_rows // len(active))
        batches, finished, caught_up = [], [], []
        for split_id, progress in active:
            count = min(share, self._allowed(progress, now))
            if progress.end is not None:
                count = min(count, progress.end - progress.position)
            if count > 0:
                data = self._maker.batch(progress.index, progress.position, count)
                batches.append(SourceBatch(data, (split_id,)))
                progress.position += count
            if progress.end is not None and progress.position >= progress.end:
                progress.finished = True
                finished.append(split_id)
            elif count <= 0:
                caught_up.append(split_id)
        return PollResult(tuple(batches), tuple(finished), tuple(caught_up))

    def _allowed(self, progress: _Progress, now: float) -> int:
        """Rows the rate limit lets through by now."""
        if self._config.events_per_second is None:
            return 1 << 62
        due = int((now - progress.began_ms) / 1000 * self._config.events_per_second)
        return progress.began_at + self._config.pattern.rows(due, 0) - progress.position

    def snapshot(self) -> tuple[SourceSplit, ...]:
        """Return every split with its position."""
        return tuple(
            SourceSplit(
                id=split_id,
                state={"index": progress.index, "position": progress.position},
                finished=progress.finished,
            )
            for split_id, progress in self._splits.items()
        )

    def notify_complete(self, splits: tuple[SourceSplit, ...]) -> None:
        """Nothing outside wants to know."""

    def close(self) -> None:
        """Nothing to free."""
