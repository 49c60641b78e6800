"""Loads every kernel, compiling those that the cache on disk lacks; called in the worker template before it forks.

Importing a kernel's module compiles it, so nothing is executed here: no thread starts, and pyarrow's compute functions
and Polars are not touched.
"""

from __future__ import annotations

import importlib

from penstock.core.clock import Clock, SystemClock
from penstock.kernels.compiler import bundle
from penstock.kernels.compiler.register import compiled_count, kernels

__all__ = ["compiled_count", "keep", "warm"]

#: One per line, as several branches add modules.
MODULES = (
    "keys.key_columns",
    "aggregates.values",
    "keys.hashing",
    "rows.order",
    "keys.split",
    "keys.hash_index",
    "keys.integer_keys",
    "aggregates.accumulate",
    "aggregates.aggregate",
    "aggregates.pages",
    "aggregates.merge",
    "aggregates.combine",
    "rows.row_kernels",
    "aggregates.kept_rows",
    "rows.join_kernels",
    "aggregates.running_kernels",
    "aggregates.cold_cells",
    "aggregates.window_kernels",
)


def warm(clock: Clock | None = None) -> float:
    """Load all kernels and return the seconds it took."""
    clock = clock or SystemClock()
    begin = clock.monotonic_ms()
    for name in MODULES:
        importlib.import_module(f"penstock.kernels.{name}")
    return (clock.monotonic_ms() - begin) / 1000


def keep() -> None:
    """Store kernels that numba had to compile or load here, so that the next process needs no numba.

    See `kernels.compiler.bundle`.
    """
    bundle.save(kernels())
