"""The best rows of each window over all keys, whole rows (kind `window_top`), in two phases.

The first phase runs in every subtask of its input and only drops rows that rows of the same subtask outrank; it keeps
one number per window, which need not survive a failure. The second phase has one subtask, keeps the candidates, and
emits the best when the watermark closes their window. So the rows sent to the one subtask grow with the logarithm of
all rows.
"""

# ruff: noqa: ARG002 - the protocol sets the parameters of hooks

from __future__ import annotations

import base64
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.core.elements import MIN_TIMESTAMP, TS_COLUMN, Batch, Watermark
from penstock.core.errors import GraphError
from penstock.core.schema import rows_to_text
from penstock.core.snapshot import OperatorStateSnapshot
from penstock.eventtime.watermarks import initial_watermark
from penstock.kernels.keys.key_columns import fixed_column
from penstock.operators.operator import NO_CAPABILITIES, Operator, OperatorSnapshot
from penstock.operators.windows.window_schemas import TopConfig, parse_top, validate_top

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.core.elements import Barrier
    from penstock.kernels.compiler.compile import I64
    from penstock.operators.operator import Capabilities, Collector, OperatorContext

_STATE = "top"
#: A rank below that of every row.
_WORST = np.iinfo(np.int64).min
#: Candidates of a window are pruned when this many more than the result are kept.
_SLACK = 4096
#: If a batch has at most this many runs of rows of one window, they are used as slices; else rows are sorted.
_FEW_RUNS = 32

_Places: TypeAlias = "slice | I64"


@dataclass(slots=True)
class _TopCandidates:
    """The state of one window: no row below `threshold` can be among its best."""

    threshold: int = _WORST
    pieces: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    prune_at: int = 0


class WindowTopOperator(Operator):
    """The rows of each window that are best by one column."""

    _config: TopConfig

    def open(self, context: OperatorContext) -> Capabilities:
        """Restore the candidates."""
        validate_top(context.spec.config, context.input_schemas[0])
        self._config = parse_top(context.spec.config)
        self._schema = context.input_schemas[0]
        if not self._config.local and context.parallelism != 1:
            raise GraphError(
                f"{context.spec.uid}: the best rows over all keys are chosen in one subtask, not {context.parallelism}",
                hint="remove .set_parallelism(...); every subtask of the input already drops rows that cannot be best",
            )
        self._context = context
        self._watermark = MIN_TIMESTAMP
        self._windows: dict[int, _TopCandidates] = {}
        for state in context.restored:
            for item in state.items:
                self._restore(item)
        return NO_CAPABILITIES

    def process_batch(self, batch: Batch, input_index: int, out: Collector) -> None:
        """Keep the rows that may be among the best, or in the first phase emit them."""
        data = batch.data
        by = data.column(self._config.by)
        if by.null_count:
            data = data.filter(by.is_valid())
        if data.num_rows == 0:
            return
        ranks = _ranks(data.column(self._config.by), descending=self._config.descending)
        times = data.column(TS_COLUMN).to_numpy()
        last = times - (times - self._config.offset) % self._config.slide
        if self._config.local:
            kept = np.zeros(len(times), np.bool_)
            for start, places in self._groups(times, last):
                kept[places] |= self._candidates(start, ranks[places])
            if kept.any():
                out.batch(Batch(data if kept.all() else data.filter(pa.array(kept))))
            return
        self._context.metrics.late_records_dropped += int((last + self._config.size - 1 <= self._watermark).sum())
        for start, places in self._groups(times, last):
            if start + self._config.size - 1 > self._watermark:
                chosen = np.flatnonzero(self._candidates(start, ranks[places]))
                if len(chosen):
                    self._add(start, data.take(pa.array(_at(places, chosen))))

    def process_watermark(self, watermark: Watermark, out: Collector) -> None:
        """Emit the best rows of the windows that close, in order, then emit the watermark."""
        if watermark.timestamp > self._watermark:
            self._watermark = watermark.timestamp
            for start in sorted(s for s in self._windows if s + self._config.size - 1 <= watermark.timestamp):
                best = self._windows.pop(start)
                if best.rows:
                    out.batch(Batch(self._result(start, best)))
        out.watermark(watermark)

    def snapshot(self, barrier: Barrier, out: Collector) -> OperatorSnapshot:
        """Save the candidates; the first phase has none."""
        if self._config.local:
            return OperatorSnapshot()
        items: list[Any] = [{"watermark": self._watermark}]
        for start, best in self._windows.items():
            self._prune(best)
            items += [{"start": start, "rows": rows_to_text(piece)} for piece in best.pieces]
        uid = self._context.spec.uid
        return OperatorSnapshot(
            operator=(OperatorStateSnapshot(uid=uid, name=_STATE, mode="union", items=tuple(items)),)
        )

    def _restore(self, item: dict[str, Any]) -> None:
        if "watermark" in item:
            self._watermark = initial_watermark(int(item["watermark"]))
        else:
            self._add(int(item["start"]), _decoded(item["rows"]))

    # --- rows -------------------------------------------------------------------------------------------------------

    def _groups(self, times: I64, last: I64) -> Iterator[tuple[int, _Places]]:
        """Yield the windows of the rows, each with the indices of its rows."""
        config = self._config
        for back in range(config.windows_per_row):
            starts = last - back * config.slide
            inside = times < starts + config.size
            if config.size % config.slide == 0 or inside.all():
                yield from _runs(starts)
                continue
            rows = np.flatnonzero(inside)
            if len(rows):
                for start, places in _runs(starts[rows]):
                    yield start, rows[places]

    def _candidates(self, start: int, ranks: I64) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return the window's rows that may be among its best, and raise its threshold."""
        if start + self._config.size - 1 <= self._watermark:
            return np.ones(len(ranks), np.bool_)  # closed here; the second phase decides on lateness
        best = self._windows.get(start)
        if best is None:
            best = self._windows[start] = _TopCandidates()
        best.threshold = max(best.threshold, self._threshold_of(ranks))
        return np.asarray(ranks >= best.threshold)

    def _threshold_of(self, ranks: I64) -> int:
        count = self._config.count
        if len(ranks) < count:
            return _WORST
        return int(ranks.max() if count == 1 else np.partition(ranks, len(ranks) - count)[len(ranks) - count])

    def _add(self, start: int, rows: pa.RecordBatch) -> None:
        best = self._windows.setdefault(start, _TopCandidates())
        best.pieces.append(rows)
        best.rows += rows.num_rows
        if best.rows > max(best.prune_at, self._config.count + _SLACK):
            self._prune(best)
            best.prune_at = 2 * best.rows

    def _prune(self, best: _TopCandidates) -> None:
        """Keep the candidates that are still among the best, as one batch."""
        if not best.pieces:
            return
        rows = _joined(best.pieces)
        ranks = _ranks(rows.column(self._config.by), descending=self._config.descending)
        best.threshold = max(best.threshold, self._threshold_of(ranks))
        kept = np.flatnonzero(ranks >= best.threshold)
        if not self._config.ties and len(kept) > self._config.count:
            order = np.argsort(~ranks[kept], kind="stable")
            kept = kept[np.sort(order[: self._config.count])]
        best.pieces = [rows if len(kept) == rows.num_rows else rows.take(pa.array(kept))]
        best.rows = best.pieces[0].num_rows

    def _result(self, start: int, best: _TopCandidates) -> pa.RecordBatch:
        """Return the window's best rows, best first; of equal ones the first arrived first."""
        self._prune(best)
        rows = best.pieces[0]
        ranks = _ranks(rows.column(self._config.by), descending=self._config.descending)
        order = np.argsort(~ranks, kind="stable")
        chosen = rows.take(pa.array(order if self._config.ties else order[: self._config.count]))
        place = self._schema.get_field_index(TS_COLUMN)
        time = pa.array(np.full(chosen.num_rows, start + self._config.size - 1, np.int64))
        return chosen.set_column(place, self._schema.field(place), time)


def _ranks(array: pa.Array, *, descending: bool) -> I64:
    """Return integers in the order of the column, the best highest; no row is null; NaN is above all floats."""
    ranks = fixed_column(array).values
    if pa.types.is_floating(array.type):
        ranks = np.where(ranks < 0, ranks ^ np.int64(0x7FFFFFFFFFFFFFFF), ranks)
    return ranks if descending else ~ranks


def _runs(starts: I64) -> Iterator[tuple[int, _Places]]:
    """Yield (window, indices of its rows) for every window; a window may occur more than once."""
    boundaries = np.flatnonzero(starts[1:] != starts[:-1]) + 1
    if len(boundaries) < _FEW_RUNS:
        bounds = [0, *boundaries.tolist(), len(starts)]
        for low, high in itertools.pairwise(bounds):
            yield int(starts[low]), slice(low, high)
        return
    order = np.argsort(starts, kind="stable")
    ordered = starts[order]
    for places in np.split(order, np.flatnonzero(ordered[1:] != ordered[:-1]) + 1):
        yield int(starts[places[0]]), places


def _at(places: _Places, chosen: I64) -> I64:
    return chosen + places.start if isinstance(places, slice) else places[chosen]


def _joined(pieces: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)


def _decoded(text: str) -> pa.RecordBatch:
    return _joined(list(pa.ipc.open_stream(base64.b64decode(text))))
