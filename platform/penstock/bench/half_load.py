"""Latency at half of a job's highest load: it runs at full speed, which gives its rate, then paced.

Called by `measure` if `--latency` is given. A delay is measured from the time a row was due at the source to its
arrival at the sink. For a window it begins when the row was due whose watermark passes its end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from penstock.bench.options import BUFFER_TIMEOUT, BenchOptions

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
