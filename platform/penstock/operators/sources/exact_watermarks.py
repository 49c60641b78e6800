"""Batches split after every row that advances the watermark: strategies with `exact=True`, meant for comparisons.

Called where event time is assigned: by `operators.sources.source_operator` and `operators.sources.assign_watermarks`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.elements import MIN_TIMESTAMP, Batch, Watermark

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.eventtime.split_watermarks import SplitWatermarks
    from penstock.operators.operator import Collector
    from penstock.operators.sources.event_time import Int64s
    from penstock.operators.sources.source_watermarks import Origin, SourceWatermarks


def advance(watermarks: SplitWatermarks, origin: Origin, marks: list[int]) -> None:
    """Apply a strategy's watermarks to the splits of a batch; `MIN_TIMESTAMP` changes nothing."""
    for split_id, mark in zip(origin[0], marks, strict=True):
        if mark != MIN_TIMESTAMP:
            watermarks.advance(split_id, mark)


def emit_exact(
    rows: tuple[pa.RecordBatch, Int64s],
    origin: Origin,
    progress: SourceWatermarks,
    watermarks: SplitWatermarks,
    out: Collector,
) -> None:
    """Emit rows (with their times) and, between them, the watermarks that result; one Python step per row."""
    data, times = rows
    split_ids, index = origin
    start = 0
    for row in range(data.num_rows):
        own = ((split_ids[0 if index is None else int(index[row])],), None)
        advance(watermarks, own, progress.after(data.slice(row, 1), times[row : row + 1], own))
        watermark = watermarks.take_advance()
        if watermark is not None:
            out.batch(Batch(data.slice(start, row + 1 - start)))
            out.watermark(Watermark(watermark))
            start = row + 1
    if start < data.num_rows:
        out.batch(Batch(data.slice(start)))
