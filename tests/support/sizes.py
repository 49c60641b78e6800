"""The sizes of state (`StateLimits`) that a test gives to its stores, operators and tasks.

Harnesses ask `sizes()` where they open a store or an operator. A test or a fixture gives other sizes with `given`, for
the time of a monkeypatch, or with `sized`, for a block.
"""

import sys
from contextlib import contextmanager

from penstock.state.memory.limits import StateLimits

_SELF = sys.modules[__name__]
_given = StateLimits()
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
    tiny = StateLimits.tiny()
    return sized(**{name: getattr(tiny, name) for name in _READS})
