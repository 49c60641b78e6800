"""Latency figures from the records of sink and paced source: counts, percentiles, the processed rate.

Called by `measure` for every run with stamps (`BenchOptions.rate`); `comparisons.measure_latency` combines two such
runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from penstock.core.errors import PenstockError
from penstock_lab.workloads.delays import BIN_US, completed_us, never

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock_lab.workloads.delays import Delays, Schedule

#: Kind of a job's results: rows, windows of event time, windows of the clock.
Results = Literal["rows", "windows", "clock"]

Int64s = np.ndarray[Any, np.dtype[np.int64]]


def latency_figures(
    seen: Sequence[Delays], schedules: Sequence[Schedule], results: Results, *, bound_ms: int, settle_ms: float
) -> dict[str, Any]:
    """Return rows, their processed rate, and the delays of results due after the job had settled.

    Delays are in milliseconds, None if nothing was counted; `bound_ms` is the watermark's.

    Raises:
        PenstockError: the source or the sink wrote no records.
    """
    if not schedules or not seen:
        raise PenstockError("source and sink recorded no times", hint="were there any rows?")
    began = min(schedule.first_ms for schedule in schedules)
    ended = max([schedule.last_ms for schedule in schedules] + [delays.last_ms for delays in seen])
    rows = sum(schedule.rows for schedule in schedules)
    taken = {"rows": rows, "rows_per_second": round(rows / max(ended - began, 1.0) * 1000)}
    if results == "rows":
        counts = np.sum([delays.counts for delays in seen], axis=0)
        most = max(delays.largest_us for delays in seen)
        places = {name: percentile(counts, share) for name, share in _SHARES.items()}
        return taken | _shown(int(counts.sum()), places, most)
    arrivals = np.concatenate([delays.windows() for delays in seen])
    ends, at, numbers = arrivals.T
    if results == "clock":
        from_us = (began + schedules[0].wall_ms + settle_ms) * 1000
        due = ends
    else:
        from_us = (began + settle_ms) * 1000
        due = completed_us(ends, schedules, bound_ms * 1000)
    # a result that arrives before it is due was completed by the end of the input
    counted = (due >= from_us) & ~never(due) & (at >= due)
    order = np.argsort((at - due)[counted])
    late, numbers = (at - due)[counted][order], numbers[counted][order]
    total = int(numbers.sum())
    if not total:
        return taken | _shown(0, dict.fromkeys(_SHARES, 0.0), 0)
    up_to = np.cumsum(numbers)
    places = {
        name: round(int(late[np.searchsorted(up_to, share * total)]) / 1000, 1) for name, share in _SHARES.items()
    }
    return taken | _shown(total, places, int(late[-1]))


_SHARES = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999}


def percentile(counts: Int64s, share: float) -> float:
    """Return the upper end, in milliseconds, of the bin below which this share of the rows is; 0 without rows."""
    total = int(counts.sum())
    if not total:
        return 0.0
    bin_ = int(np.searchsorted(np.cumsum(counts), share * total))
    return round((bin_ + 1) * BIN_US / 1000, 1)


def _shown(results: int, places: dict[str, float], most_us: int) -> dict[str, Any]:
    figures = places | {"max_ms": round(most_us / 1000, 1)}
    return {"results": results, **(figures if results else dict.fromkeys(figures))}
