"""Snapshots offline: `ps.snapshots.read`, and what `penstock state` and `penstock check` are made of.

Everything here reads a savepoint's folder or a job's folder of checkpoints; no job has to run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.snapshots.reading import read as read

__all__ = ["read"]


def __getattr__(name: str) -> Any:
    """Load a function on first use: reading needs Polars, which the command line does not always."""
    if name == "read":
        from penstock.snapshots.reading import read

        return read
    msg = f"penstock.snapshots has no {name!r}; there are: {', '.join(__all__)}"
    raise AttributeError(msg)
