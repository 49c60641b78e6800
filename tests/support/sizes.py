"""The sizes of state (`StateLimits`) that a test gives to its stores, operators and tasks.

Harnesses ask `sizes()` where they open a store or an operator. A test or a fixture gives other sizes with `given`, for
the time of a monkeypatch, or with `sized`, for a block.
"""

import sys
from contextlib import contextmanager

from penstock.state.memory.limits import StateLimits

_SELF = sys.modules[__name__]
_given = StateLimits()
#: Small sizes: a few rows fill a row group, leave memory or start a compaction.
TINY = StateLimits(
    group_rows=3,
    encoded_rows=3,
    merged_rows=5,
    merged_bytes=2000,
    whole_file_bytes=0,
    run_bytes=600,
    decoded_bytes=300,
    restored_at_once_rows=2,
    loaded_rows=1,
    segments_per_tier=3,
    first_rows=8,
    first_slots=2,
    first_bytes=4,
    dead_keys=1,
    many_changes=20,
    large_changes_bytes=300,
    measured_bytes=100,
    whole_rows=3,
    sweep_keys=2,
    freeze_sweep_keys=2,
    cold_sweep_part=2,
    hot_keys=4,
    incoming_keys=2,
    piece_rows=4,
    evicted_keys=2,
    gathered_bytes=300,
    searched_timers=3,
    sparse_bytes=400,
    stretch_bytes=4096,
    regions=4,
    fetched_rows=6,
    prefetched_rows=3,
    few_rows=2,
    many_ranges=1,
    region_file_bytes=1 << 13,
    spill_part=0,
    spilled_bytes=0,
    small_run_rows=2,
    run_splits=3,
    fan=2,
    merged_run_bytes=1000,
    join_pairs=7,
    window_pairs=3,
    output_rows=5,
    fired_timers=5,
    encoded_at_once_bytes=200,
)
#: The sizes that decide how much one read of remote state fetches.
_READS = (
    *("group_rows", "whole_file_bytes", "run_bytes", "regions"),
    *("fetched_rows", "prefetched_rows", "few_rows", "many_ranges", "region_file_bytes"),
)


def sizes():
    """Return the sizes in use."""
    return _given


def given(monkeypatch, **changes):
    """Use other sizes, of those in use some, until the monkeypatch ends."""
    monkeypatch.setattr(_SELF, "_given", _given.changed(**changes))


@contextmanager
def sized(**changes):
    """Use other sizes, of those in use some, within a block."""
    before = _SELF._given
    _SELF._given = before.changed(**changes)
    try:
        yield
    finally:
        _SELF._given = before


def small_pieces():
    """Use segments of a few rows a row group, all read by ranges, within a block: remote state in small."""
    return sized(**{name: getattr(TINY, name) for name in _READS})
