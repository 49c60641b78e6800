"""Code that the join operators share: the kept rows of both sides, and the batches of result rows.

Used by `operators.joins.interval_join`, `operators.joins.window_join` and `operators.joins.temporal_join`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from penstock.core.elements import MIN_TIMESTAMP, TS_COLUMN, Batch, Watermark, WatermarkStatus
from penstock.core.errors import GraphError, PenstockError
from penstock.core.join_evolution import ALONE, JOIN
from penstock.core.snapshot import OperatorStateSnapshot
from penstock.kernels.aggregates.window_kernels import TIME_LIMIT
from penstock.kernels.keys.hashing import hash_key_columns
from penstock.kernels.keys.key_columns import key_columns
from penstock.operators.joins.join_schema import SIDES, JoinSides, key_schema_of, value_fields
from penstock.operators.late import LateRows
from penstock.operators.operator import Operator, OperatorSnapshot
from penstock.operators.output_pieces import PutsOutPieces
from penstock.operators.range_watermarks import RangeWatermarks
from penstock.state.memory.limits import PRODUCTION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.core.elements import Barrier
    from penstock.core.keygroup import HashRange
    from penstock.core.permits import CommitPermit
    from penstock.kernels.compiler.compile import I32, I64
    from penstock.operators.operator import Collector, OperatorContext

#: Name of the operator state that holds the watermark, by hash range.
WATERMARK = "watermark"


@dataclass(frozen=True, slots=True)
class Arrived:
    """The rows of a batch that are not late: slots of their keys, times, columns."""

    slots: I32
    times: I64
    data: pa.RecordBatch

    def columns(self, names: Sequence[str]) -> list[pa.Array]:
        """Return these columns."""
        return [self.data.column(name) for name in names]


class JoinState:
    """State of a join operator: both sides' rows, their keys, and the watermark."""

    def __init__(self, context: OperatorContext, sides: JoinSides, join: str, alone: bytes = b"") -> None:
        """Declare (and so restore) both sides' rows and the watermark.

        `join` and `alone` describe the join; see `core.join_evolution`.

        Raises:
            GraphError: the operator was deployed without keyed state.
        """
        if context.keyed_state is None:
            raise GraphError(f"{context.spec.uid}: a join needs keyed state", hint="key both sides before the join")
        self._context = context
        self._sides = sides
        self._store = context.keyed_state
        late = context.spec.config.get("late_to", {})
        self._late = tuple(LateRows({"late_to": late.get(side)}, context.metrics) for side in SIDES)
        left, right = context.input_schemas
        self.rows = self._store.row_state(key_schema_of(sides, left), leaves=True)
        fields = value_fields(left, sides.left), value_fields(right, sides.right)
        #: Rows of the left and of the right side, and the names and types of the columns they keep.
        made_for = ((JOIN, join.encode()), (ALONE, alone))
        pairs = zip(SIDES, fields, strict=True)
        self.tables = tuple(self.rows.timed_rows(name, tuple(kept), made_for) for name, kept in pairs)
        self.names = tuple([field.name for field in kept] for kept in fields)
        self.types = tuple([field.type for field in kept] for kept in fields)
        saved = [item for s in context.restored if s.name == WATERMARK for item in s.items]
        self.watermarks = RangeWatermarks.restored(context.hash_range, saved)

    def check_all_declared(self) -> None:
        """Check that no state of the snapshot is left undeclared; call after all declarations."""
        self._store.check_all_declared()

    def take(self, batch: Batch, side: int, out: Collector, last: Callable[[I64], I64] | None = None) -> Arrived | None:
        """Return the rows of a side with their keys' slots; late rows are counted or emitted to their side output.

        A row is late when its time (or the `last` time of its use) is below the watermark.

        Raises:
            PenstockError: a row's event time is impossible.
        """
        data = batch.data
        times: I64 = data.column(TS_COLUMN).to_numpy()
        if data.num_rows == 0:
            return None
        if int(times.min()) <= -TIME_LIMIT or int(times.max()) >= TIME_LIMIT:
            raise PenstockError(
                f"{self._context.spec.uid}: a row has an event time more than 73,000 years from 1970",
                hint="event time is microseconds since the epoch; check the unit of the timestamp column",
            )
        keys = key_columns(data, self._sides.key(side))
        hashes = hash_key_columns(keys, data.num_rows)
        on_time = (times if last is None else last(times)) >= self.marks(hashes)
        if not on_time.all():
            self._late[side].take(data, ~on_time, out)
            if not on_time.any():
                return None
            data = data.filter(pa.array(on_time))
            times, hashes = data.column(TS_COLUMN).to_numpy(), hashes[on_time]
            keys = key_columns(data, self._sides.key(side))
        return Arrived(self.rows.upsert(keys, hashes).copy(), times, data)

    def keep(self, arrived: Arrived, side: int) -> None:
        """Keep rows returned by `take`; slots may be renumbered by the call."""
        self.tables[side].add(arrived.slots, arrived.times, arrived.columns(self.names[side]))
        self.rows.settle()

    def parts(self, low: int, high: int) -> Iterator[HashRange]:
        """Yield hash ranges whose rows between two times are processed together.

        Slots may be renumbered after each range.
        """
        for part in self.rows.parts(low, high):
            yield part
            self.rows.settle()

    def see(self, up_to: int) -> None:
        """Fetch the rows up to a time from the object store, if any are there (`TimedRows.noted`)."""
        if self.rows.far_rows is not None:
            self.rows.far_rows.see(up_to)

    def snapshot(self, checkpoint_id: int) -> OperatorSnapshot:
        """Freeze the rows of both sides; the watermark is saved with the hash range it holds for."""
        items: tuple[Any, ...] = self.watermarks.items()
        watermark = OperatorStateSnapshot(uid=self._context.spec.uid, name=WATERMARK, mode="union", items=items)
        return OperatorSnapshot(keyed=self._store.freeze(checkpoint_id), operator=(watermark,))

    def completed(self, checkpoint_id: int) -> None:
        """Let the segments of the checkpoint be compacted."""
        self._store.completed(checkpoint_id)

    def marks(self, hashes: I64) -> I64 | int:
        """Return the watermark of keys of these hashes; after a rescale it differs by key."""
        low = self.watermarks.low
        if not self.watermarks.differ:
            return low
        bounds = np.full(len(hashes), low, np.int64)
        for owned, watermark in self.watermarks.ahead():
            bounds[(hashes >= owned.low) & (hashes <= owned.high)] = watermark
        return bounds


class JoinOutput:
    """Collects result rows into batches of suitable size."""

    def __init__(
        self, schema: pa.Schema, sides: JoinSides, left: pa.Schema, most_rows: int = PRODUCTION.output_rows
    ) -> None:
        """Make an output.

        `schema` is that of the result, with `__ts`; `left` is that of the left side; a batch has about `most_rows`
        rows.
        """
        self._most_rows = most_rows
        self._schema = schema
        self._left = [name for name in left.names if name != TS_COLUMN]
        self._key = sides.left
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0

    def add(self, columns: tuple[Sequence[Any], Sequence[Any], Sequence[Any]], times: I64) -> Iterator[Batch]:
        """Add rows, and yield a batch once there are enough; the caller exhausts the iterator.

        `columns`: (key columns, other columns of the left side, all that follows), in the order of the schemas.
        """
        keys, left, right = columns
        by_name = dict(zip(self._key, keys, strict=True))
        values = iter(left)
        arrays = [by_name[name] if name in by_name else next(values) for name in self._left]
        self._waiting.append(pa.RecordBatch.from_arrays([*arrays, *right, pa.array(times)], schema=self._schema))
        self._rows += len(times)
        if self._rows >= self._most_rows:
            yield from self.flush()

    def flush(self) -> Iterator[Batch]:
        """Yield the remaining rows."""
        if self._rows:
            waiting, self._waiting, self._rows = self._waiting, [], 0
            yield Batch(waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting))


class JoinOperator(PutsOutPieces, Operator, Protocol):
    """The common part of the joins: work on rows and watermarks is a generator, whose output is emitted in batches."""

    _state: JoinState

    def _take(self, batch: Batch, side: int, out: Collector) -> Iterator[Batch]:
        """Keep rows of a side, and yield the results available at once; `out` receives late rows."""

    def _pass(self, watermark: int) -> Iterator[Batch]:
        """Yield the results as the watermark advances to `watermark`, and delete rows that are no longer needed."""

    def process_batch(self, batch: Batch, input_index: int, out: Collector) -> None:
        """Keep the rows; emit the results available at once."""
        self._pieces.begin(self._take(batch, input_index, out), out)

    def process_watermark(self, watermark: Watermark, out: Collector) -> None:
        """Emit the results up to the watermark, then the watermark."""
        self._pieces.begin(self._passing(watermark), out)

    def process_status(self, status: WatermarkStatus, out: Collector) -> None:
        """Emit the status after all pending results."""
        self._pieces.begin(iter((status,)), out)

    def _passing(self, watermark: Watermark) -> Iterator[Batch | Watermark]:
        if watermark.timestamp > self._state.watermarks.low:
            yield from self._pass(watermark.timestamp)
        yield watermark

    def snapshot(self, barrier: Barrier, out: Collector) -> OperatorSnapshot:
        """Freeze the rows of both sides; results of the rows before the barrier were emitted by then."""
        self._pieces.drain(out)
        return self._state.snapshot(barrier.checkpoint_id)

    def notify_complete(self, permit: CommitPermit) -> None:
        """Let the segments of the checkpoint be compacted."""
        self._state.completed(permit.checkpoint_id)


def below(watermark: int, distance: int) -> int:
    """Return `watermark - distance`, which may be below all times."""
    return max(MIN_TIMESTAMP, watermark - distance)
