"""The generator as a source: `DatagenSource` for users, its factory for the runtime.

Splits are generated evenly so that their event times advance together; a rate limit counts from the row at which a
reader started, with the injected clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.connector.source import SourceSpec
from penstock.core.errors import GraphError
from penstock.core.schema import schema_to_text
from penstock_connectors.datagen.orders import ORDER_SCHEMA, OrderPattern, orders
from penstock_connectors.generated import RowReader, SplitEnumerator, history

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.connector.source import HistorySplit, SourceContext

_FACTORY = "penstock_connectors.datagen.source:DatagenSourceFactory"


class _Config(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `SourceSpec.config`."""

    pattern: OrderPattern
    #: Rows over all splits; None = without end.
    rows: int | None = None
    #: Rows per second over all splits; None = no limit.
    rows_per_second: int | None = None

    def end(self, split: int) -> int | None:
        """Return the rows of one split: an even share, the remainder to the first splits."""
        if self.rows is None:
            return None
        share, rest = divmod(self.rows, self.pattern.splits)
        return share + (1 if split < rest else 0)

    def make(self, split: int, position: int, count: int) -> pa.RecordBatch:
        """Return orders of one split."""
        return orders(self.pattern, split, position, count)

    def due(self, elapsed_ms: float) -> int | None:
        """Return the rows of one split that the rate allows."""
        if self.rows_per_second is None:
            return None
        return int(elapsed_ms / 1000 * (self.rows_per_second / self.pattern.splits))


@dataclass(frozen=True, kw_only=True)
class DatagenSource:
    """Orders (`user_id`, `amount`, `ts`), the same for the same settings; bounded if `rows` is given."""

    rows: int | None = None
    splits: int = 4
    users: int = 1000
    max_amount: int = 100
    start_us: int = 1_700_000_000_000_000
    #: Orders per second of event time.
    event_rate: int = 10_000
    #: How much earlier than its neighbours' the event time of an order may be.
    disorder_ms: int = 0
    #: Orders per second of real time; None = no limit.
    rows_per_second: int | None = None
    seed: int = 0

    @property
    def row_schema(self) -> pa.Schema:
        """Return the schema of the orders."""
        return ORDER_SCHEMA

    def spec(self) -> SourceSpec:
        """Return the source as a value.

        Raises:
            GraphError: a number is out of range.
        """
        for name in ("splits", "users", "max_amount", "event_rate"):
            if getattr(self, name) < 1:
                msg = f"DatagenSource: {name} must be at least 1, not {getattr(self, name)}"
                raise GraphError(msg, hint="leave it out for the default")
        for name in ("rows", "rows_per_second", "disorder_ms"):
            value = getattr(self, name)
            if value is not None and value < (1 if name == "rows_per_second" else 0):
                msg = f"DatagenSource: {name} must not be {value}"
                raise GraphError(msg, hint="leave it out for the default")
        pattern = OrderPattern(
            splits=self.splits,
            users=self.users,
            max_amount=self.max_amount,
            start_us=self.start_us,
            event_rate=self.event_rate,
            disorder_ms=self.disorder_ms,
            seed=self.seed,
        )
        config = _Config(pattern=pattern, rows=self.rows, rows_per_second=self.rows_per_second)
        return SourceSpec(
            factory=_FACTORY,
            config=msgspec.to_builtins(config),
            schema=schema_to_text(ORDER_SCHEMA),
            bounded=self.rows is not None,
        )


class DatagenSourceFactory:
    """Makes enumerator and reader from the spec."""

    def create_enumerator(self, spec: SourceSpec, *, first_run: bool) -> SplitEnumerator:
        """Return the enumerator; the splits are the same in every run."""
        del first_run
        return SplitEnumerator("orders", msgspec.convert(spec.config, _Config).pattern.splits)

    def create_reader(self, spec: SourceSpec, context: SourceContext) -> RowReader:
        """Return a reader for one subtask."""
        return RowReader(msgspec.convert(spec.config, _Config), context.clock)

    def validate(self, spec: SourceSpec) -> None:
        """Check the config's form; there is no outside system."""
        msgspec.convert(spec.config, _Config)

    def history(
        self,
        spec: SourceSpec,
        until: dict[str, Any],
        piece_rows: int | None,
        begin: dict[str, Any] | None = None,
    ) -> tuple[HistorySplit, ...]:
        """Return the splits up to a position; see `HistoryFactory`."""
        rows = msgspec.convert(spec.config, _Config)
        return history(rows, self.create_enumerator(spec, first_run=True), (begin, until), piece_rows)
