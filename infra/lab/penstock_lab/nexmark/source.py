"""The generator as a source: `NexmarkSource` for users, its factory and rows for the runtime.

A split's position is the number of its next row. Splits are generated evenly so that their event times advance
together; a rate limit counts from the row at which a reader started, with the injected clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from penstock.connector.source import SourceSpec
from penstock.core.errors import GraphError
from penstock.core.schema import schema_to_text
from penstock.core.structs import prepare
from penstock_connectors.generated import RowReader, SplitEnumerator, history
from penstock_lab.nexmark.events import SCHEMAS, EventMaker, Kind, NexmarkPattern
from penstock_lab.nexmark.strings import Text
from penstock_lab.workloads.marks import first_record

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.connector.source import HistorySplit, SourceContext

_FACTORY = "penstock_lab.nexmark.source:NexmarkSourceFactory"
_PRELOAD = "penstock_lab.nexmark.source"


class _Config(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `SourceSpec.config`."""

    pattern: NexmarkPattern
    #: Events of the whole stream, of all kinds; None = unbounded.
    events: int | None = None
    #: Events of the whole stream per second of real time; None = no limit.
    events_per_second: int | None = None
    #: Folder for a mark when a reader makes its first row.
    marks: str = ""


prepare(_Config)


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
    #: Events per second of real time; None = no limit.
    events_per_second: int | None = None
    seed: int = 0
    #: Strings: a copy for each row ("copied"), or Arrow's views of a pool ("views", of type `string_view`).
    text: Text = "copied"
    #: For benchmarks: a folder for a mark when the first row is made.
    marks: str = ""

    @property
    def row_schema(self) -> pa.Schema:
        """Return the schema of the rows."""
        return self.pattern().schema

    def pattern(self) -> NexmarkPattern:
        """Return the settings of the events.

        Raises:
            GraphError: an unknown kind or column, or a number out of range.
        """
        if self.kind not in SCHEMAS:
            msg = f"NexmarkSource: there is no kind {self.kind!r}"
            raise GraphError(msg, hint=f"there are: {', '.join(SCHEMAS)}")
        known, columns = SCHEMAS[self.kind].names, tuple(self.columns or ())
        for name in columns:
            if name not in known or columns.count(name) > 1:
                msg = f"NexmarkSource: column {name!r} is {'given twice' if name in known else 'unknown'}"
                raise GraphError(msg, hint=f"a {self.kind} has: {', '.join(known)}")
        if self.text not in get_args(Text):
            msg = f"NexmarkSource: text is {self.text!r}"
            raise GraphError(msg, hint=f"it can be {' or '.join(map(repr, get_args(Text)))}")
        counts = ("splits", "rate", "hot_auction_ratio", "hot_bidder_ratio", "hot_seller_ratio")
        for name in (*counts, "auctions_in_flight", "active_people", "events_per_second"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                msg = f"NexmarkSource: {name} must be at least 1, not {getattr(self, name)}"
                raise GraphError(msg, hint="leave it out for the default")
        if self.events is not None and self.events < 0:
            msg = f"NexmarkSource: events must not be {self.events}"
            raise GraphError(msg, hint="leave it out for an unbounded stream")
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
            text=self.text,
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

    def create_enumerator(self, spec: SourceSpec, *, first_run: bool) -> SplitEnumerator:
        """Return the enumerator; the splits are the same in every run."""
        del first_run
        return SplitEnumerator("nexmark", msgspec.convert(spec.config, _Config).pattern.splits)

    def create_reader(self, spec: SourceSpec, context: SourceContext) -> RowReader:
        """Return a reader for one subtask."""
        config = msgspec.convert(spec.config, _Config)

        def mark() -> None:
            first_record(config.marks, context.subtask, context.clock.now_ms())

        return RowReader(_Events(config), context.clock, mark if config.marks else None)

    def history(
        self,
        spec: SourceSpec,
        until: dict[str, Any],
        piece_rows: int | None,
        begin: dict[str, Any] | None = None,
    ) -> tuple[HistorySplit, ...]:
        """Return the splits up to a position; see `HistoryFactory`."""
        rows = _Events(msgspec.convert(spec.config, _Config))
        return history(rows, self.create_enumerator(spec, first_run=True), (begin, until), piece_rows)

    def validate(self, spec: SourceSpec) -> None:
        """Check the config's form; there is no outside system."""
        msgspec.convert(spec.config, _Config)


class _Events:
    """The rows of the stream (`generated.Rows`)."""

    def __init__(self, config: _Config) -> None:
        self._config = config
        self._maker = EventMaker(config.pattern)

    def end(self, split: int) -> int | None:
        """Return the rows of one split."""
        events = self._config.events
        return None if events is None else self._config.pattern.rows(events, split)

    def make(self, split: int, position: int, count: int) -> pa.RecordBatch:
        """Return rows of one split."""
        return self._maker.batch(split, position, count)

    def allowed_rows(self, elapsed_ms: float) -> int | None:
        """Return the rows of one split that the rate of the whole stream allows."""
        rate = self._config.events_per_second
        return None if rate is None else self._config.pattern.rows(int(elapsed_ms / 1000 * rate), 0)
