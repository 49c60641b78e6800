"""`StateLimits`: the tuning sizes of keyed state in one value, shared by stores, tables, logs and files.

The defaults are the production sizes. Tests and the simulator pass smaller ones, so that a few rows fill a row group,
leave memory or start a compaction. No size changes a result. `KeyedStateRequest`, `OperatorContext` and
`TaskEnvironment` pass the limits on; offline tools write with the defaults.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

_UNLIMITED: Final = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class StateLimits:
    """Immutable sizes in rows, keys, bytes or parts."""

    # --- segment files ----------------------------------------------------------------------------------------------

    #: Rows of a row group in segments of remote state and in merged ones: the unit of a read.
    group_rows: int = 8192
    #: Bytes of a row group before it is encoded, about: wide rows are in groups of fewer rows.
    group_bytes: int = 16 << 20
    #: Rows that are encoded at a time when memory is not bounded, and of a row group in segments that are mostly read
    #: completely.
    encoded_rows: int = 65_536
    #: Rows that a compaction or a savepoint merges at a time.
    merged_rows: int = 250_000
    #: Bytes of different hashes that are merged at a time, which takes several times as much memory.
    merged_bytes: int = 128 << 20
    #: Segment files smaller than this many bytes are read in one call.
    whole_file_bytes: int = 1 << 20
    #: Segment files smaller than this many bytes are never part of a longer sorted run.
    sorted_run_bytes: int = 1 << 20
    #: Bytes of neighbouring row groups that one read fetches.
    run_bytes: int = 8 << 20
    #: Bytes of neighbouring row groups that are decoded at a time, at a word a value: so many stay in the CPU's cache.
    decoded_bytes: int = 4 << 20
    #: Number of segments in a tier of a log that starts a compaction.
    segments_per_tier: int = 8

    #: Restored rows of a table up to which all are loaded before the first element of the input.
    restored_at_once_rows: int = 262_144
    #: Rows of larger tables that are loaded between two elements of the input.
    loaded_rows: int = 16_384

    # --- tables in memory -------------------------------------------------------------------------------------------

    #: Initial capacity of a value table in rows.
    first_rows: int = 4096
    #: Initial capacity of a table of lists or maps in keys.
    first_slots: int = 1024
    #: Initial capacity of a column of strings or binary values in bytes.
    first_bytes: int = 1 << 16
    #: Dead keys below which a key index is not rebuilt.
    dead_keys: int = 65_536
    #: Rows of changes to entries or timers after which they are reduced to the last change of each.
    many_changes: int = 262_144
    #: Bytes of changes to entries after which they are reduced.
    large_changes_bytes: int = 16 << 20
    #: Bytes of text by which lists and maps grow before they are measured again.
    measured_bytes: int = 16 << 20
    #: Keys per batch whose time-to-live is checked.
    sweep_keys: int = 1024
    #: Rows of a table of windows up to which a freeze saves all of them, in place of older segments.
    whole_rows: int = 1024
    #: Keys per barrier whose time-to-live is checked.
    freeze_sweep_keys: int = 262_144
    #: A sweep checks one cold key per this many keys in memory.
    cold_sweep_part: int = 16

    # --- eviction ---------------------------------------------------------------------------------------------------

    #: Keys in memory above which keys are evicted, regardless of their bytes; production bounds only the bytes.
    hot_keys: int = _UNLIMITED
    #: Most keys that enter memory at a time; production bounds only the bytes.
    incoming_keys: int = _UNLIMITED
    #: Fewest rows that a table with a cold file adds or evicts at a time.
    piece_rows: int = 1024
    #: An eviction keeps one key of a row state or session table in this many.
    kept_keys_part: int = 2
    #: An eviction keeps one key of a table with a cold file in this many.
    kept_rows_part: int = 4
    #: Keys that a row state writes to the cold store at a time.
    evicted_keys: int = 16_384
    #: Bytes of changes of evicted keys that are held in memory until the next checkpoint, of each state.
    gathered_bytes: int = 8 << 20
    #: Cold timers that a search for due timers looks at.
    searched_timers: int = 131_072
    #: Bytes of a cold file per written record above which each record is written at its own position.
    sparse_bytes: int = 4 << 10
    #: Bytes of a cold file that are rewritten at a time.
    stretch_bytes: int = 1 << 20

    # --- remote state -----------------------------------------------------------------------------------------------

    #: Number of regions: hash ranges whose local copy is dropped as a unit.
    regions: int = 32
    #: Approximate number of rows of a table that are fetched at a time.
    fetched_rows: int = 262_144
    #: Approximate number of rows that are fetched at a time in the background.
    prefetched_rows: int = 32_768
    #: Rows that a pane table adds at a time while most rows need a fetch.
    few_rows: int = 32
    #: Fetch ranges that a call may fetch before the next call receives fewer rows.
    many_ranges: int = 16
    #: Bytes of rows that wait for their state, above which a subtask reads no further rows.
    waiting_bytes: int = 8 << 20
    #: Bytes of the first local file of a region of a join side.
    region_file_bytes: int = 4 << 20

    # --- rows of joins ----------------------------------------------------------------------------------------------

    #: Part of an operator's memory share that state may fill before rows of joins are spilled to files.
    spill_part: float = 0.6
    #: Rows of joins smaller than this many bytes are not spilled to a file.
    spilled_bytes: int = 256 << 10
    #: Rows of a run in memory below which it is merged with the next one: searching one more run costs more than
    #: sorting so few rows again.
    small_run_rows: int = 512
    #: Most files, by time, that one run is split into.
    run_splits: int = 8
    #: Groups of files that are merged into one.
    fan: int = 4
    #: Bytes of fetched runs together above which they are not merged; merging needs several times their size.
    merged_run_bytes: int = 32 << 20
    #: Pairs of rows that a join produces at a time.
    join_pairs: int = 65_536

    # --- operators and uploads --------------------------------------------------------------------------------------

    #: Pairs of rows that a window join produces at a time.
    window_pairs: int = 16_384
    #: Rows that an operator emits at a time when one batch or watermark can produce any number.
    output_rows: int = 65_536
    #: Timers that fire at a time.
    fired_timers: int = 16_384
    #: Timers that may fire at the end of input, besides a thousand for each that was already registered.
    timers_at_end: int = 10_000
    #: Bytes of output held for a checkpoint above which a sink asks for back-pressure.
    held_output_bytes: int = 1 << 30
    #: Bytes of a subtask's part of a checkpoint up to which its own thread encodes them: a hand-over costs as much.
    encoded_at_once_bytes: int = 64 << 10
    #: Files smaller than this many bytes are sent inside the acknowledgement of their checkpoint.
    inline_state_bytes: int = 32 << 10
    #: The same limit for staged output; every manifest contains it until it is published.
    inline_staged_bytes: int = 8 << 10
    #: Bytes waiting for an upload above which the files of a checkpoint are refused.
    queued_bytes: int = 1 << 30

    def changed(self, **changes: Any) -> StateLimits:
        """Return a copy with some sizes changed."""
        return replace(self, **changes)


PRODUCTION: Final = StateLimits()
