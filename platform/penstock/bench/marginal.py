"""What an event more costs: a run beside runs of few events, in which start-up, class loading and compilation cancel.

The same for the job (`measure`, `kafka_windows`) and for its peers (`peers`).
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

#: With so few events the job itself is run once more, so often: its start varies, and the median counts.
FEW_EVENTS, FEW_RUNS = 200_000, 3
#: A marginal cost is told only where the events more cost this much of what start-up takes, which varies by itself.
_TELLING = 0.25


def marginal_figures(events: int, total: float, few_events: int, few_totals: Sequence[float]) -> dict[str, Any]:
    """Return the figures of a run of `events` that took `total` CPU seconds, beside runs of `few_events`.

    CPU seconds are those of the whole tree of processes, start-up included. There is no
    `marginal_events_per_cpu_second` where the difference is too small to tell.
    """
    few = median(few_totals)
    found: dict[str, Any] = {"few_events": few_events, "few_cpu_seconds_total": round(few, 3)}
    more = total - few
    if more > _TELLING * few:
        found["marginal_events_per_cpu_second"] = round((events - few_events) / more)
    return found
