"""`SnapshotLimits`: sizes that the snapshot tools process at a time, and sizes of files.

The defaults are for production. Tests use others, so that a few rows fill many files. Used by
`repartition.repartition`, `rekey.rekey` and `parts.plan_write`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotLimits:
    """Sizes in bytes; immutable."""

    #: Bytes of old files for one range, which only a single row group or key may exceed.
    cut_bytes: int = 256 << 20
    #: Approximate bytes of rows in memory for one file of a change of keys.
    file_bytes: int = 256 << 20
    #: Bytes of rows that a task of a write sorts at a time.
    run_bytes: int = 128 << 20
    #: Bytes of rows in memory when a task of a write writes them.
    piece_bytes: int = 64 << 20
    #: Bytes of (compressed) files that are compared at a time.
    compared_bytes: int = 16 << 20


DEFAULT_LIMITS = SnapshotLimits()
