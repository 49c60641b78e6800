"""The plugin in a user's own run of pytest."""

import logging

import pytest

pytest_plugins = ["pytester"]

SLOW = """
    import logging

    def test_waits():
        logging.getLogger("penstock").warning("job totals is in a call")
        logging.getLogger("penstock.rpc").warning("internal")
        print("captured")
"""


@pytest.mark.parametrize(("after", "shown"), [(-1, 1), (60_000, 0)])
def test_a_warning_of_a_test_that_lasts_reaches_the_terminal_at_once(pytester, monkeypatch, after, shown):
    monkeypatch.setattr("penstock.testing.plugin._QUIET_MS", after)
    monkeypatch.setattr(logging.getLogger("penstock"), "handlers", [])  # that of this test itself
    pytester.makepyfile(SLOW)
    text = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:asyncio").stdout.str()
    assert text.count("test_waits: job totals is in a call") == shown
    assert "captured" not in text
    assert "internal" not in text
