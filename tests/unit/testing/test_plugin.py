"""The plugin in a user's own run of pytest."""

import logging

import pytest

from penstock.testing.plugin import OnTerminal

pytest_plugins = ["pytester"]

SLOW = """
    import logging

    import pytest

    from penstock.testing.plugin import OnTerminal


    @pytest.fixture
    def soon(request):
        logger, handler = logging.getLogger("penstock"), OnTerminal(request.node, quiet_ms={quiet})
        logger.addHandler(handler)
        yield
        logger.removeHandler(handler)


    def test_waits(soon):
        logging.getLogger("penstock").warning("job totals is in a call")
        logging.getLogger("penstock.rpc").warning("internal")
        print("captured")
"""


@pytest.mark.parametrize(("quiet", "shown"), [(-1, 1), (60_000, 0)])
def test_a_warning_of_a_test_that_lasts_reaches_the_terminal_at_once(pytester, quiet, shown):
    pytester.makepyfile(SLOW.format(quiet=quiet))
    text = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:asyncio").stdout.str()
    assert text.count("test_waits: job totals is in a call") == shown
    assert "captured" not in text
    assert "internal" not in text


def test_each_test_has_the_handler_while_it_runs():
    found = [handler for handler in logging.getLogger("penstock").handlers if isinstance(handler, OnTerminal)]
    assert len(found) == 1
