"""The workloads by name. A workload is a function of `BenchOptions` that returns its figures, imported when asked for.

To add one: a line here, and a function that most often ends with `measure.measure_job`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from penstock.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.bench.options import BenchOptions

#: Name: (`module:function`, what it measures).
WORKLOADS: dict[str, tuple[str, str]] = {
    "w1": ("penstock.bench.windows:w1", "key by user, tumbling window of 10 s: count and sum"),
    "w1s": ("penstock.bench.windows:w1s", "the same with sliding windows of 10 s, one a second"),
    "w2": ("penstock.bench.running:w2", "key by key, count and sum after every event; RocksDB, a checkpoint every 5 s"),
    "w2x": ("penstock.bench.running:w2x", "the same with memory for a tenth of the keys"),
    "w3": ("penstock.bench.stateless:w3", "filter and two columns by expressions, no key, no state"),
    "latency": (
        "penstock.bench.latency:latency",
        "delay of rows behind a shuffle at half of the job's highest rate",
    ),
    "latency-rows": ("penstock.bench.latency:latency_rows", "the same with a row function in the same slots"),
    "shuffle": ("penstock.bench.stateless:shuffle", "every row to the owner of its key, and nothing else"),
}


def workload(name: str) -> Callable[[BenchOptions], dict[str, Any]]:
    """Return the function of a workload.

    Raises:
        UsageError: there is none of that name.
    """
    if name not in WORKLOADS:
        msg = f"there is no workload {name!r}"
        raise UsageError(msg, hint=f"known: {', '.join(WORKLOADS)}")
    module, _, function = WORKLOADS[name][0].partition(":")
    found: Callable[[BenchOptions], dict[str, Any]] = getattr(importlib.import_module(module), function)
    return found
