"""The engine loads connectors by name, so the simulation's modules must be importable as `tests.sim`."""

import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.support.sizes import given

from penstock.state.tiers.cold_timers import ColdTimers
from penstock.state.tiers.range_fetcher import RangeFetcher

ROOT = str(Path(__file__).resolve().parents[2])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)


@pytest.fixture
def counted(monkeypatch):
    """How many pieces, and how often timers, were fetched when they were asked for; keys leave memory now and then."""
    monkeypatch.setattr(RangeFetcher, "next_fetch", lambda self: None)
    given(monkeypatch, hot_keys=2)
    counts = Counter()
    ensure, fetch_next = RangeFetcher.ensure, ColdTimers.fetch_next

    def pieces(self, *arguments):
        before = self.fetched_ranges
        ensure(self, *arguments)
        counts["pieces"] += self.fetched_ranges - before

    def timers(self):
        counts["timers"] += 1
        fetch_next(self)

    monkeypatch.setattr(RangeFetcher, "ensure", pieces)
    monkeypatch.setattr(ColdTimers, "fetch_next", timers)
    return counts
