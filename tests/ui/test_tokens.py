"""The web interface of a cluster with tokens: it asks for one, keeps it, and offers what the role allows, no more."""

import json
import urllib.error
import urllib.request

import pytest
from playwright.sync_api import Error, expect
from tests.cluster.tokens import protected_cluster
from tests.support.waiting import wait_until
from tests.ui import jobs
from tests.ui.browser import Visit
from tests.ui.lifecycle_way import confirmed

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]
CANCEL = """async (id) => {
    const answer = await fetch(`../v1/jobs/${id}?mode=cancel`, { method: "PATCH" });
    return [answer.status, (await answer.json()).errors.join()];
}"""
EVERY = ["Savepoint", "Rescale", "Upgrade", "Stop", "Drain", "Cancel"]


@pytest.fixture
def protected(tmp_path):
    """A cluster with a job that runs; of a test alone, which ends and begins jobs on it."""
    with protected_cluster(tmp_path, slots=3) as (cluster, tokens):
        written = tmp_path / "job.penstock"
        written.write_bytes(jobs.encoded(tmp_path, rate=500, work=10))
        client = tokens.client(cluster.rest_url)
        job_id = client.submit(written.read_bytes(), token="one")
        wait_until(lambda: client.job(job_id)["state"] == "RUNNING", lambda: f"a job that runs: {client.job(job_id)}")
        yield cluster.rest_url, tokens, job_id, written


def test_the_browser_asks_for_a_token_and_a_viewer_is_offered_nothing(browser, protected):
    url, tokens, job_id, _ = protected
    asked_for_one(browser, url)
    told_that_it_is_wrong(browser, url, tokens)
    with Visit(browser, url, token=tokens.of["viewer"]) as visit:
        viewed(visit, job_id)
    assert tokens.client(url).job(job_id)["state"] == "RUNNING"


def test_an_operator_acts_on_jobs_and_an_admin_brings_code_too(browser, protected, tmp_path):
    url, tokens, job_id, written = protected
    with Visit(browser, url, token=tokens.of["operator"]) as visit:
        operated(visit, job_id, tmp_path)
    assert tokens.client(url).job(job_id)["state"] == "RUNNING"
    with Visit(browser, url, token=tokens.of["admin"]) as visit:
        administered(visit, job_id, written)
    assert sorted(job["state"] for job in tokens.client(url).jobs()) == ["CANCELED", "RUNNING"]


def asked_for_one(browser, url):
    with Visit(browser, url) as visit:
        visit.wanted = "status of 401"
        # asked for a password, and there is nobody to type it
        with pytest.raises(Error, match="ERR_INVALID_AUTH_CREDENTIALS"):
            visit.page.goto(f"{url}/ui/")
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(f"{url}/ui/", timeout=30)
    assert error.value.code == 401
    (text,) = json.load(error.value)["errors"]
    assert "this cluster requires a token" in text
    assert "browsers send it as the password" in text


def told_that_it_is_wrong(browser, url, tokens):
    with Visit(browser, url, token=tokens.of["viewer"][:-1] + "x") as visit:
        visit.wanted = "status of 401"
        assert visit.page.goto(f"{url}/ui/").status == 401
        expect(visit.page.locator("body")).to_contain_text("the token is not valid for this cluster")


def viewed(visit, job_id):
    visit.wanted = "status of 403"
    page = visit.go(f"jobs/{job_id}")
    for _ in range(2):
        expect(page.locator("#pulse")).to_have_text("connected")
        expect(page.locator("#reader")).to_have_text("viewer-of-the-test (viewer)")
        expect(page.locator("header.job")).to_contain_text("Actions on jobs need the role operator")
        expect(page.get_by_role("group", name="Actions")).to_have_count(0)
        page.reload()  # the token is kept
    status, error = page.evaluate(CANCEL, job_id)
    assert status == 403
    assert "viewer-of-the-test is viewer" in error
    assert "needs operator" in error
    visit.go("submit")
    expect(page.get_by_text("Submitting jobs needs the role admin")).to_be_visible()
    expect(page.get_by_label("Job", exact=True)).to_have_count(0)


def operated(visit, job_id, folder):
    page = visit.go(f"jobs/{job_id}")
    expect(page.locator("header.job .chip")).to_have_text("running")
    buttons = page.get_by_role("group", name="Actions").get_by_role("button")
    expect(buttons).to_have_text([name for name in EVERY if name != "Upgrade"])
    confirmed(page, "Savepoint", "Take a savepoint", Folder=str(folder / "saved"))
    expect(page.locator("#toasts")).to_contain_text("Savepoint written")
    # what cannot be done is told in the question, which stays to be mended
    file = folder / "file"
    file.touch()
    visit.wanted = "status of 400"
    confirmed(page, "Stop", "Stop the job", Folder=str(file))
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("is not writable")
    page.keyboard.press("Escape")
    visit.go("submit")
    expect(page.get_by_text("Submitting jobs needs the role admin")).to_be_visible()


def administered(visit, job_id, written):
    page = visit.go(f"jobs/{job_id}")
    expect(page.get_by_role("group", name="Actions").get_by_role("button")).to_have_text(EVERY)
    confirmed(page, "Cancel", "Cancel the job")
    expect(page.locator("header.job .chip")).to_have_text("canceled")
    page = visit.go("submit")
    page.get_by_label("Job", exact=True).set_input_files(written)
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.locator("header.job .chip")).to_have_text("running")
