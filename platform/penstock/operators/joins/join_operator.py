"""Common parts of the join operators: kept rows of both sides, batches of result rows, and bounded output.

Base of the interval, window and temporal join.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.core.elements import TS_COLUMN, Batch, Watermark, WatermarkStatus
from penstock.core.errors import GraphError, PenstockError
from penstock.core.evolution import JOIN, UNMATCHED
from penstock.core.snapshot import OperatorStateSnapshot
from penstock.kernels.aggregates.pane_assignment import TIME_LIMIT
from penstock.kernels.keys.hashing import hash_key_columns
from penstock.kernels.keys.key_columns import key_columns
from penstock.operators.joins.join_schema import SIDES, JoinSides, key_schema_of, value_fields
from penstock.operators.lateness import LateRows, RangeWatermarks
from penstock.operators.operator import Capabilities, Operator, OperatorSnapshot
from penstock.state.memory.limits import PRODUCTION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.core.elements import Barrier
    from penstock.core.keygroup import HashRange
    from penstock.kernels.compiler.compile import I32, I64
    from penstock.operators.operator import Collector, OperatorContext

OutputElement: TypeAlias = Batch | Watermark | WatermarkStatus


class OutputQueue:
    """A queue of output generators: the pending output and the back-pressure of a join."""

    def __init__(self, max_rows: int = PRODUCTION.output_rows) -> None:
        """Make an empty queue; about `max_rows` rows are emitted at a time."""
        self._max_rows = max_rows
        self._work: deque[Iterator[OutputElement]] = deque()

    @property
    def has_pending_output(self) -> bool:
        """Whether output may be pending."""
        return bool(self._work)

    @property
    def available(self) -> bool:
        """False while output is pending."""
        return not self._work

    def capabilities(self) -> Capabilities:
        """Return the capabilities of an operator with this queue."""
        return Capabilities(pending_output=self, available=lambda: self.available)

    def begin(self, work: Iterator[OutputElement], out: Collector) -> None:
        """Emit the first rows of `work`; if other generators precede it, only queue it."""
        self._work.append(work)
        if len(self._work) == 1:
            self.emit_ready(out)

    def emit_ready(self, out: Collector) -> bool:
        """Emit the next rows, and the other elements before the row after them; return whether there were any."""
        rows, some = 0, False
        while self._work and rows < self._max_rows:
            piece = next(self._work[0], None)
            if piece is None:
                self._work.popleft()
                continue
            some = True
            if isinstance(piece, Batch):
                rows += piece.num_rows
                out.batch(piece)
            elif isinstance(piece, Watermark):
                out.watermark(piece)
            else:
                out.status(piece)
        return some

    def drain(self, out: Collector) -> None:
        """Emit all pending output."""
        while self._work:
            self.emit_ready(out)


#: Name of the operator state that holds the watermark, by hash range.
WATERMARK = "watermark"


@dataclass(frozen=True, slots=True)
class OnTimeRows:
    """The rows of a batch that are not late: slots of their keys, times, columns."""

    slots: I32
    times: I64
    data: pa.RecordBatch

    def columns(self, names: Sequence[str]) -> list[pa.Array]:
        """Return these columns."""
        return [self.data.column(name) for name in names]


class JoinState:
    """State of a join operator: both sides' rows, their keys, and the watermark."""

    def __init__(self, context: OperatorContext, sides: JoinSides, join: str, unmatched: bytes = b"") -> None:
        """Declare (and so restore) both sides' rows and the watermark.

        `join` and `unmatched` describe the join; see `core.evolution`.

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
        self.rows = self._store.row_state(key_schema_of(sides, left), evictable=True)
        fields = value_fields(left, sides.left), value_fields(right, sides.right)
        #: Rows of the left and of the right side, and the names and types of the columns they keep.
        made_for = ((JOIN, join.encode()), (UNMATCHED, unmatched))
        pairs = zip(SIDES, fields, strict=True)
        self.tables = tuple(self.rows.join_buffer(name, tuple(kept), made_for) for name, kept in pairs)
        self.names = tuple([field.name for field in kept] for kept in fields)
        self.types = tuple([field.type for field in kept] for kept in fields)
        saved = [item for s in context.restored if s.name == WATERMARK for item in s.items]
        self.watermarks = RangeWatermarks.restored(context.hash_range, saved)

    def check_all_declared(self) -> None:
        """Check that no state of the snapshot is left undeclared; call after all declarations."""
        self._store.check_all_declared()

    def take(
        self, batch: Batch, side: int, out: Collector, last: Callable[[I64], I64] | None = None
    ) -> OnTimeRows | None:
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
        return OnTimeRows(self.rows.upsert(keys, hashes).copy(), times, data)

    def keep(self, arrived: OnTimeRows, side: int) -> None:
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

    def fetch_until(self, up_to: int) -> None:
        """Fetch the rows up to a time from the object store, if any are there (`RemoteRuns.fetch_until`)."""
        if self.rows.remote_runs is not None:
            self.rows.remote_runs.fetch_until(up_to)

    def snapshot(self, checkpoint_id: int) -> OperatorSnapshot:
        """Freeze the rows of both sides; the watermark is saved with the hash range it holds for."""
        items: tuple[Any, ...] = self.watermarks.items()
        watermark = OperatorStateSnapshot(uid=self._context.spec.uid, name=WATERMARK, mode="union", items=items)
        return OperatorSnapshot(keyed=self._store.freeze(checkpoint_id), operator=(watermark,))

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
        self, schema: pa.Schema, sides: JoinSides, left: pa.Schema, max_rows: int = PRODUCTION.output_rows
    ) -> None:
        """Make an output.

        `schema` is that of the result, with `__ts`; `left` is that of the left side; a batch has about `max_rows`
        rows.
        """
        self._max_rows = max_rows
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
        if self._rows >= self._max_rows:
            yield from self.flush()

    def flush(self) -> Iterator[Batch]:
        """Yield the remaining rows."""
        if self._rows:
            waiting, self._waiting, self._rows = self._waiting, [], 0
            yield Batch(waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting))


class JoinOperator(Operator, Protocol):
    """The common part of the joins: work on rows and watermarks is a generator, whose output is emitted in batches."""

    _state: JoinState
    output_queue: OutputQueue

    def _take(self, batch: Batch, side: int, out: Collector) -> Iterator[Batch]:
        """Keep rows of a side, and yield the results available at once; `out` receives late rows."""

    def _advance_to(self, watermark: int) -> Iterator[Batch]:
        """Yield the results as the watermark advances to `watermark`, and delete rows that are no longer needed."""

    def process_batch(self, batch: Batch, input_index: int, out: Collector) -> None:
        """Keep the rows; emit the results available at once."""
        self.output_queue.begin(self._take(batch, input_index, out), out)

    def process_watermark(self, watermark: Watermark, out: Collector) -> None:
        """Emit the results up to the watermark, then the watermark."""
        self.output_queue.begin(self._advance_and_emit(watermark), out)

    def process_status(self, status: WatermarkStatus, out: Collector) -> None:
        """Emit the status after all pending results."""
        self.output_queue.begin(iter((status,)), out)

    def _advance_and_emit(self, watermark: Watermark) -> Iterator[Batch | Watermark]:
        if watermark.timestamp > self._state.watermarks.low:
            yield from self._advance_to(watermark.timestamp)
        yield watermark

    def snapshot(self, barrier: Barrier, out: Collector) -> OperatorSnapshot:
        """Freeze the rows of both sides; results of the rows before the barrier were emitted by then."""
        self.output_queue.drain(out)
        return self._state.snapshot(barrier.checkpoint_id)
