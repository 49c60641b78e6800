"""The marginal cost of an event: a run compared with runs of few events, in which start-up and compilation cancel.

The same for the job (`measure`, `kafka_windows`) and for its peers (`peers`).
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

#: The number of events and of runs of the job with few events: its start-up varies, and the median counts.
FEW_EVENTS, FEW_RUNS = 200_000, 3
#: The marginal cost is reported only if the additional events cost this share of the start-up, which itself varies.
_TELLING = 0.25


def marginal_figures(events: int, total: float, few_events: int, few_totals: Sequence[float]) -> dict[str, Any]:
    """Return the figures of a run of `events` that took `total` CPU seconds, compared with runs of `few_events`.

    CPU seconds are those of the whole process tree, including start-up. `marginal_events_per_cpu_second` is missing if
    the difference is too small.
    """
    few = median(few_totals)
    found: dict[str, Any] = {"few_events": few_events, "few_cpu_seconds_total": round(few, 3)}
    more = total - few
    if more > _TELLING * few:
        found["marginal_events_per_cpu_second"] = round((events - few_events) / more)
    return found
