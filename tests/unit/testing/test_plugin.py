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


MISTAKES = """
    from datetime import datetime

    import penstock as ps
    from penstock.testing import JobHarness
    from penstock_connectors.datagen import DatagenSource


    class Row(ps.Schema):
        user_id: int


    def fails(row) -> Row:
        raise ValueError("negative")


    def orders():
        return ps.Environment().from_source(DatagenSource(), watermarks=None, uid="orders")


    def test_a_wrong_row():
        with JobHarness(orders()) as job:
            job.push("orders", [{"user_id": 1}])


    def test_a_wrong_time():
        with JobHarness(orders()) as job:
            job.watermark("orders", "soon")


    def test_no_job():
        JobHarness(None)


    def test_no_number(job_harness):
        job_harness(orders(), parallelism="2")


    def test_a_closed_harness():
        with JobHarness(orders()) as job:
            pass
        job.push("orders", [])


    def test_a_failing_function():
        with JobHarness(orders().map(fails)) as job:
            job.push("orders", [{"user_id": 1, "amount": 5, "ts": datetime(2026, 1, 1)}])
"""


def test_a_mistake_in_a_test_ends_at_its_line(pytester, monkeypatch):
    monkeypatch.delenv("PENSTOCK_TRACEBACK", raising=False)
    path = pytester.makepyfile(MISTAKES)
    options = ("-p", "no:cacheprovider", "-p", "no:asyncio", "--tb=short", "--show-capture=no")
    lines = pytester.runpytest_inprocess(*options).stdout.lines
    assert [line for line in lines if ".py:" in line and path.name not in line] == []
    errors = [line for line in lines if line.startswith("E  ")]
    for number, text in enumerate(
        (
            "push to 'orders': a row has no field 'amount'",
            "'soon' is not a time (write for example '2026-01-01T00:00:10'",
            "JobHarness: None is no job (pass the path of a job file, a ps.Environment or a stream)",
            "JobHarness: parallelism='2' is not a whole number of at least 1 (for example parallelism=2)",
            "job 'job': the harness is closed, so source 'orders' takes no input (give it inside of the block",
            "job job failed: UserFunctionError: map 'map-2': ValueError: negative at",
        )
    ):
        assert text in errors[number]
    monkeypatch.setenv("PENSTOCK_TRACEBACK", "1")
    shown = pytester.runpytest_inprocess(*options, "-k", "wrong_row").stdout.str()
    assert "harness.py:" in shown, "engine frames are shown on request"
