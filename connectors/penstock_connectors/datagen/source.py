"""The generator as a source: `DatagenSource` for users, its enumerator and reader for the runtime.

Splits are generated evenly so that their event times advance together; a rate limit counts from the row at which a
reader started, with the injected clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from penstock.connector.source import PollResult, SourceBatch, SourceSpec, SourceSplit
from penstock.core.errors import GraphError
from penstock.core.schema import schema_to_text
from penstock_connectors.datagen.orders import ORDER_SCHEMA, OrderPattern, orders

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.connector.source import SourceContext
    from penstock.core.clock import Clock

_FACTORY = "penstock_connectors.datagen.source:DatagenSourceFactory"


class _Config(msgspec.Struct, frozen=True, kw_only=True):
    """What travels in `SourceSpec.config`."""

    pattern: OrderPattern
    #: Rows over all splits; None = without end.
    rows: int | None = None
    #: Rows per second over all splits; None = as fast as they are taken.
    rows_per_second: int | None = None

    def rows_of(self, split: int) -> int | None:
        """Rows of one split: an even share, the remainder to the first splits."""
        if self.rows is None:
            return None
        share, rest = divmod(self.rows, self.pattern.splits)
        return share + (1 if split < rest else 0)


@dataclass(frozen=True, kw_only=True)
class DatagenSource:
    """Orders (`user_id`, `amount`, `ts`), the same for the same settings; bounded when `rows` is given."""

    rows: int | None = None
    splits: int = 4
    users: int = 1000
    max_amount: int = 100
    start_us: int = 1_700_000_000_000_000
    #: Orders per second of event time.
    event_rate: int = 10_000
    #: How much earlier than its neighbours' an order's event time may be.
    disorder_ms: int = 0
    #: Orders per second of real time; None = as fast as they are taken.
    rows_per_second: int | None = None
    seed: int = 0

    @property
    def row_schema(self) -> pa.Schema:
        """Schema of the orders."""
        return ORDER_SCHEMA

    def spec(self) -> SourceSpec:
        """Return the source as a value.

        Raises:
            GraphError: a number that makes no sense.
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

    def create_enumerator(self, spec: SourceSpec, *, first_run: bool) -> DatagenEnumerator:
        """Return the enumerator; the splits are the same in every run."""
        del first_run
        return DatagenEnumerator(msgspec.convert(spec.config, _Config))

    def create_reader(self, spec: SourceSpec, context: SourceContext) -> DatagenReader:
        """Return a reader for one subtask."""
        return DatagenReader(msgspec.convert(spec.config, _Config), context.clock)

    def validate(self, spec: SourceSpec) -> None:
        """Check the config's form; there is nothing outside to reach."""
        msgspec.convert(spec.config, _Config)


class DatagenEnumerator:
    """Lists the generator's splits: `orders-0` and so on."""

    def __init__(self, config: _Config) -> None:
        self._config = config

    def discover(self, known: frozenset[str]) -> tuple[SourceSplit, ...]:
        """Return the splits not in `known`."""
        ids = [(f"orders-{index}", index) for index in range(self._config.pattern.splits)]
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


class DatagenReader:
    """Generates the rows of its splits; position = the next row's number within the split."""

    def __init__(self, config: _Config, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._splits: dict[str, _Progress] = {}

    def add_splits(self, splits: tuple[SourceSplit, ...]) -> None:
        """Start from the splits' positions."""
        now = self._clock.monotonic_ms()
        for split in splits:
            position = int(split.state["position"])
            index = int(split.state["index"])
            self._splits[split.id] = _Progress(
                index, position, self._config.rows_of(index), position, now, finished=split.finished
            )

    def poll(self, max_rows: int) -> PollResult:
        """Generate up to `max_rows` rows, an even share of each split."""
        active = [(split_id, p) for split_id, p in self._splits.items() if not p.finished]
        if not active:
            return PollResult()
        now = self._clock.monotonic_ms()
        share = max(1, max_rows // len(active))
        batches, finished, caught_up = [], [], []
        for split_id, progress in active:
            count = min(share, self._allowed(progress, now))
            if progress.end is not None:
                count = min(count, progress.end - progress.position)
            if count > 0:
                data = orders(self._config.pattern, progress.index, progress.position, count)
                batches.append(SourceBatch(data, (split_id,)))
                progress.position += count
            if progress.end is not None and progress.position >= progress.end:
                progress.finished = True
                finished.append(split_id)
            elif count <= 0:
                caught_up.append(split_id)
        return PollResult(tuple(batches), tuple(finished), tuple(caught_up))

    def _allowed(self, progress: _Progress, now: float) -> int:
        if self._config.rows_per_second is None:
            return 1 << 62
        rate = self._config.rows_per_second / self._config.pattern.splits
        due = int((now - progress.began_ms) / 1000 * rate)
        return progress.began_at + due - progress.position

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
