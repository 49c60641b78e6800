"""Figures of one job from several runs: marginal cost, cost of checkpoints, latency at half load.

`measure` and the Kafka workload call it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import msgspec

from penstock_lab.bench.options import BUFFER_TIMEOUT, BenchOptions

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


def measure_pairs(options: BenchOptions, measure: Callable[[BenchOptions], dict[str, Any]]) -> dict[str, Any]:
    """Run pairs, every second one in reverse order; return the first run's figures and the pairs.

    Without checkpoints there is still the final one. The loss is that of events per CPU second and of events per
    second; a negative one means that the run with checkpoints was faster.
    """
    without = msgspec.structs.replace(options, checkpoint_interval_ms=None)
    first: dict[str, Any] = {}
    pairs: list[dict[str, Any]] = []
    for number in range(options.pairs):
        runs: dict[str, dict[str, Any]] = {}
        order = [("with", options), ("without", without)]
        for name, chosen in reversed(order) if number % 2 else order:
            runs[name] = measure(chosen)
        first = first or runs["with"]
        pairs.append({name: _shown(runs[name]) for name, _ in order})
    rates = {
        name: {side: median(pair[side][name] for pair in pairs) for side in ("with", "without")}
        for name in ("events_per_cpu_second", "events_per_second")
    }
    losses = {
        name: [round(100 * (1 - pair["with"][name] / pair["without"][name]), 1) for pair in pairs] for name in rates
    }
    return first | {
        "pairs": pairs,
        "medians": rates,
        "loss_percent": losses,
        "median_loss_percent": {name: round(median(found), 1) for name, found in losses.items()},
    }


def _shown(figures: dict[str, Any]) -> dict[str, Any]:
    shown = {name: figures[name] for name in ("wall_seconds", "cpu_seconds", "events_per_cpu_second", "load")}
    shown["events_per_second"] = round(figures["events"] / figures["wall_seconds"])
    return shown | {name: figures[name] for name in ("checkpoints", "max_freeze_ms")}


#: Shortest run at full speed and length of the paced one, unless the number of events is given; the settling time of
#: the paced run, and its largest share of the run.
_FULL_SECONDS, _SECONDS, _SETTLE_MS, _SETTLE_PART = 3.0, 12.0, 2000.0, 0.15
_LATENCY = "latency"


def measure_latency(
    events: int, options: BenchOptions, measure: Callable[[int, BenchOptions], dict[str, Any]]
) -> dict[str, Any]:
    """Run a job twice; return the figures of the run at full speed, and `latency` with those of the paced run.

    `measure` runs a number of events and returns figures with `latency` from `delays.latency_figures`. Both runs carry
    the stamps. With `--events` both have that many.
    """
    full = measure(events, _stamped(options, 0.0))
    rate, rows = _rate_of(full)
    if options.events is None and rows / rate < _FULL_SECONDS:
        full = measure(int(events * 1.3 * _FULL_SECONDS * rate / rows), _stamped(options, 0.0))
        rate, rows = _rate_of(full)
    half = rate / 2
    paced_events = options.events or max(1, int(full["events"] / rows * half * _SECONDS))
    settle_ms = min(_SETTLE_MS, 1000 * _SETTLE_PART * paced_events * rows / full["events"] / half)
    paced = measure(paced_events, _stamped(options, half, settle_ms))
    found = paced[_LATENCY]
    return full | {
        _LATENCY: {
            "events": paced["events"],
            "most_rows_per_second": round(rate),
            "rows_per_second": round(half),
            "rows_taken_per_second": found["rows_per_second"],
            "buffer_timeout": BUFFER_TIMEOUT,
            **{name: value for name, value in found.items() if name not in ("rows", "rows_per_second")},
            "cpu_seconds": paced["cpu_seconds"],
            "checkpoints": paced["checkpoints"],
            "load": paced["load"],
        }
    }


def _rate_of(figures: dict[str, Any]) -> tuple[float, int]:
    found = figures[_LATENCY]
    return max(1.0, found["rows_per_second"]), found["rows"]


def _stamped(options: BenchOptions, rate: float, settle_ms: float = 0.0) -> BenchOptions:
    return msgspec.structs.replace(options, latency=False, rate=rate, settle_ms=settle_ms)
