"""Snapshots offline: `ps.snapshots.read` and `write`, and the parts of `penstock state` and `penstock check`.

A snapshot is a savepoint's folder or a job's folder of checkpoints; no job has to run.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.snapshots.access.reading import read as read
    from penstock.snapshots.rewrite.writing import write as write

__all__ = ["read", "write"]


def __getattr__(name: str) -> Any:
    """Load a function on first use: they need Polars, which the command line does not always load."""
    if name in __all__:
        module = importlib.import_module(
            "penstock.snapshots.access.reading" if name == "read" else "penstock.snapshots.rewrite.writing"
        )
        return getattr(module, name)
    msg = f"penstock.snapshots has no {name!r}; there are: {', '.join(__all__)}"
    raise AttributeError(msg)
