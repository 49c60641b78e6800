"""The cost of checkpoints: the same job with and without them, in turn, compared by medians. Called by `measure`."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import msgspec

from penstock.bench.options import BenchOptions


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
