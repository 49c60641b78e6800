"""Flink's own tools on a cluster that asks for tokens: the command line by a header, the dashboard by a password."""

import re

import pytest
from playwright.sync_api import expect
from tests.cluster.tokens import Tokens
from tests.flink_tools.cluster import Place
from tests.flink_tools.dashboard import dashboard
from tests.flink_tools.installation import FlinkCli
from tests.ui.browser import Visit, chromium

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def guarded(flink_home, tmp_path):
    found = Place(tmp_path, tokens=Tokens(tmp_path / "security"))
    with found.cluster:
        yield found, found.tokens


@pytest.fixture
def flink(guarded, tmp_path):
    place, tokens = guarded
    return lambda role="": FlinkCli(tmp_path, place.address, tokens.of.get(role, role))


def test_the_command_line_with_and_without_a_token(guarded, flink, tmp_path):
    place, _ = guarded
    job = place.submit("guarded")
    for command in (("list",), ("cancel", job), ("stop", "-p", str(tmp_path), job)):
        assert "this cluster requires a token" in flink()(*command, code=1)
    assert "not valid for this cluster" in flink("f" * 64)("list", code=1)
    assert f"{job} : guarded (RUNNING)" in flink("viewer")("list")
    assert "needs operator" in flink("viewer")("cancel", job, code=1)
    assert place.state(job) == "RUNNING"

    operator = flink("operator")
    assert re.search(r"Path: \S+", operator("savepoint", job, str(tmp_path / "saved")))
    assert re.search(r"Path: \S+", operator("stop", "--savepointPath", str(tmp_path / "stopped"), job))
    place.wait(job, "FINISHED")
    again = place.submit("guarded")
    operator("cancel", again)
    place.wait(again, "CANCELED")


@pytest.mark.nightly
def test_the_dashboard_asks_for_the_token_and_offers_what_the_role_may(guarded):
    place, tokens = guarded
    job = place.submit("watched")
    cancel = lambda page: page.get_by_text("Cancel Job")
    with dashboard(place.cluster.rest_url) as (url, passed), chromium() as browser:
        for role in ("viewer", "operator"):
            with Visit(browser, url, token=tokens.of[role]) as visit:
                visit.wanted = "status of 401"  # the first question, before the password
                visit.page.goto(f"{url}/#/job/running/{job}/overview")
                visit.page.get_by_text("watched").first.wait_for()
                visit.page.wait_for_load_state("networkidle")
                expect(cancel(visit.page)).to_have_count(0 if role == "viewer" else 1)
        assert {status for _, _, status in passed} <= {200, 401}
        with dashboard(place.cluster.rest_url) as (other, refused), Visit(browser, other, token="0" * 64) as visit:
            visit.page.goto(f"{other}/#/overview")
            visit.page.wait_for_load_state("networkidle")
            visit.problems.clear()  # of a page without any answer
        assert {status for _, _, status in refused} == {401}
