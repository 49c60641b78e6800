"""The tutorial of backfills runs as it is written."""

import pytest
from tests.support.tutorials import Tutorial

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(900)]


def test_backfill(tmp_path):
    checked, made, live, compared = Tutorial("backfill", tmp_path).run()
    assert "totals" in checked
    assert "begun" in made
    assert "FINISHED" in live
    assert "the same rows" in compared
