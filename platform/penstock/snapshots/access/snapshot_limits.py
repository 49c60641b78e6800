"""`SnapshotLimits`: how many bytes the tools of snapshots take at a time, and put into a file.

The defaults are those of production. Tests give others, so that a few rows fill many files. Taken by
`repartition.repartition`, `rekey.rekey` and `parts.plan_write`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotLimits:
    """Sizes in bytes; immutable."""

    #: Of the old files that one cut is made of, at most but for what a row group or a single key has.
    cut_bytes: int = 256 << 20
    #: Of rows, as they are in memory, that one file of a change of keys is made of, about.
    file_bytes: int = 256 << 20
    #: Of rows that a task of a write sorts at a time.
    run_bytes: int = 128 << 20
    #: Of rows that are in memory when a task of a write writes them.
    piece_bytes: int = 64 << 20
    #: Of files (they are compressed) that are compared at a time.
    compared_bytes: int = 16 << 20


DEFAULT_LIMITS = SnapshotLimits()
