"""A generator of orders: `DatagenSource` for users, its factory for the runtime.

Orders are a pure function of their row number, so that a replay from any row is exact. Splits are generated evenly
so that their event times advance together. A rate limit counts from the row at which a reader started.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from penstock.connector.source import SourceSpec
from penstock.core.errors import GraphError
from penstock.core.schema import schema_to_text
from penstock.core.structs import prepare
from penstock_connectors.generated import RowReader, SplitEnumerator, history

if TYPE_CHECKING:
    from penstock.connector.source import HistorySplit, SourceContext

ORDER_SCHEMA = pa.schema(
    [
        pa.field("user_id", pa.int64(), nullable=False),
        pa.field("amount", pa.int64(), nullable=False),
        pa.field("ts", pa.timestamp("us", tz="UTC"), nullable=False),
    ]
)

Int64s = np.ndarray[Any, np.dtype[np.int64]]
Uint64s = np.ndarray[Any, np.dtype[np.uint64]]


class OrderPattern(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the orders."""

    splits: int = 4
    #: Distinct values of `user_id`: 0 .. users-1.
    users: int = 1000
    #: Amounts are 1 .. max_amount.
    max_amount: int = 100
    #: Event time of order 0, microseconds since the epoch.
    start_us: int = 1_700_000_000_000_000
    #: Orders per second of event time, over all splits.
    event_rate: int = 10_000
    #: An order's event time is up to this much before its regular place.
    disorder_ms: int = 0
    seed: int = 0


def orders(pattern: OrderPattern, split: int, start: int, count: int) -> pa.RecordBatch:
    """Return rows start .. start+count-1 of one split."""
    number = np.arange(start, start + count, dtype=np.int64) * pattern.splits + split
    user_id = (_hash(number, pattern.seed, 1) % np.uint64(pattern.users)).astype(np.int64)
    amount = (_hash(number, pattern.seed, 2) % np.uint64(pattern.max_amount)).astype(np.int64) + 1
    arrays = [
        pa.array(user_id),
        pa.array(amount),
        pa.array(_times(pattern, number)).view(ORDER_SCHEMA.field("ts").type),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ORDER_SCHEMA)


def _times(pattern: OrderPattern, number: Int64s) -> Int64s:
    regular = pattern.start_us + number * 1_000_000 // pattern.event_rate
    if not pattern.disorder_ms:
        return regular
    early = _hash(number, pattern.seed, 3) % np.uint64(pattern.disorder_ms * 1000 + 1)
    return regular - early.astype(np.int64)


def _hash(number: Int64s, seed: int, field: int) -> Uint64s:
    """Return the finaliser of splitmix64 over (seed, field, row number): independent, evenly spread columns."""
    salt = (seed * 0x9E3779B97F4A7C15 + field * 0xD1B54A32D192ED03) & 0xFFFFFFFFFFFFFFFF
    mixed = number.astype(np.uint64) + np.uint64(salt)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


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

    def allowed_rows(self, elapsed_ms: float) -> int | None:
        """Return the rows of one split that the rate allows."""
        if self.rows_per_second is None:
            return None
        return int(elapsed_ms / 1000 * (self.rows_per_second / self.pattern.splits))


prepare(_Config)


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
