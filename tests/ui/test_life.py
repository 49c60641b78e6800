"""A job's life by the browser alone: uploaded, saved, rescaled, looked into, seen failing, cancelled."""

import json
import re
import urllib.error
import urllib.request

import pytest
from playwright.sync_api import expect
from tests.support.waiting import wait_until
from tests.ui import jobs
from tests.ui.browser import Visit
from tests.ui.lifecycle_way import confirmed

from penstock.client.local_cluster import LocalCluster, LocalClusterConfig
from penstock.snapshots.access.opening import open_snapshot

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def cluster(tmp_path):
    config = LocalClusterConfig(taskmanagers=1, slots_per_taskmanager=3, directory=tmp_path / "cluster")
    with LocalCluster(config) as found:
        yield found


def test_a_life(browser, cluster, tmp_path):
    written = tmp_path / "job.penstock"
    written.write_bytes(jobs.encoded(tmp_path, rate=500, work=10))
    client = cluster.client()
    with Visit(browser, cluster.rest_url) as visit:
        page = visit.go("submit")
        page.get_by_label("Job").set_input_files(written)
        page.get_by_role("button", name="Submit", exact=True).click()
        expect(page.get_by_role("heading", level=1)).to_have_text("order-risks")
        expect(page.get_by_role("heading", level=1)).to_be_focused()
        job_id = client.jobs()[0]["jid"]
        expect(page.get_by_role("list", name="Findings")).to_contain_text("Keeping up")

        saved(page, tmp_path)
        rescaled(page, client, job_id)
        visit.wanted = "status of 400"  # the answer to a key of another type
        looked_up(page)
        failed(page, tmp_path)
        upgraded(page, client, job_id, tmp_path)

        confirmed(page, "Cancel", "Cancel the job")
        expect(page.locator("header.job .chip")).to_have_text("canceled")
        expect(page.get_by_role("group", name="Actions")).to_have_count(0)
        wait_until(lambda: client.job(job_id)["state"] == "CANCELED", "the job's end")


def saved(page, folder):
    toast = page.locator("#toasts")
    for native in (False, True):
        below = str(folder / f"saved-{native}")
        confirmed(page, "Savepoint", "Take a savepoint", Folder=below, Native_format=native)
        expect(toast).to_contain_text(f"Savepoint written: {below}")
        found = re.search(r"Savepoint written: (\S+)", toast.locator("span").last.inner_text())[1]
        manifest = open_snapshot(found).manifest
        assert (manifest.job_name, manifest.native) == ("order-risks", native)


def rescaled(page, client, job_id):
    # one that is left does nothing, and gives the focus back
    button = page.get_by_role("group", name="Actions").get_by_role("button", name="Rescale")
    button.click()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(button).to_be_focused()
    confirmed(page, "Rescale", "Rescale", Subtasks="99")
    expect(page.locator("#toasts")).to_contain_text("Rescale failed")
    confirmed(page, "Rescale", "Rescale", Subtasks="3")
    expect(page.locator("#toasts")).to_contain_text("runs with 3 subtasks")
    expect(page.get_by_role("button", name=re.compile("rate orders"))).to_contain_text("3 subtasks")
    assert {v["name"]: v["parallelism"] for v in client.job(job_id)["vertices"]}["rate orders"] == 3


def looked_up(page):
    page.get_by_role("link", name="State", exact=True).click()
    form = page.locator("form.ask")
    form.get_by_label("State").select_option(label="rate / seen (by user_id int64)")
    form.get_by_label("Key").fill("7")
    form.get_by_role("button", name="Look up").click()
    rows = page.get_by_role("table", name="Rows of the key")
    expect(rows.get_by_role("row")).to_have_count(2)
    assert int(rows.get_by_role("cell").last.inner_text()) > 0
    form.get_by_label("Key").fill("seven")
    form.get_by_role("button", name="Look up").click()
    expect(page.get_by_role("alert")).to_contain_text("int64")
    page.get_by_role("list", name="Hottest keys of rate").get_by_role("button").first.click()
    expect(page.locator("#answer")).to_contain_text('rate / seen of {"user_id":')
    expect(page.get_by_role("table", name="Sizes of rate / seen").get_by_role("row")).to_have_count(4)


def failed(page, folder):
    page.get_by_role("link", name="Exceptions").click()
    (folder / "broken").touch()
    failure = page.get_by_role("article").first
    expect(failure).to_contain_text("cannot be rated")
    own = failure.locator("pre.own")
    expect(own).to_contain_text(re.compile(r'rate_orders\.py", line \d+, in check\s+raise ValueError'))
    expect(own).to_contain_text(re.compile(r"row [\d,]+ of a batch of [\d,]+: user_id=\d+, "))
    expect(own).not_to_contain_text("penstock/")
    frames = failure.locator("details pre")
    expect(frames).to_be_hidden()
    failure.get_by_text("All frames").click()
    expect(frames).to_contain_text("penstock/")
    (folder / "broken").unlink()
    page.get_by_role("link", name="Graph").click()
    expect(page.locator("header.job .chip")).to_have_text("running")


def upgraded(page, client, job_id, folder):
    """What became of it is told as it was: on a busy machine the new version may fail its trial."""
    version = folder / "second.penstock"
    version.write_bytes(jobs.encoded(folder, rate=500, work=20))
    page.get_by_role("group", name="Actions").get_by_role("button", name="Upgrade").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("The new version").set_input_files(version)
    dialog.get_by_label("Checkpoints on trial").fill("1")
    dialog.get_by_role("button", name="Upgrade").click()
    told = page.locator("#toasts").get_by_text(re.compile("is running the new version|Upgrade failed: "))
    expect(told).to_be_visible()
    text = told.inner_text()
    try:
        with urllib.request.urlopen(f"{client.url}/v1/penstock/jobs/{job_id}/upgrade", timeout=30) as answer:
            found = json.load(answer)
    except urllib.error.HTTPError as error:  # refused, as while the job is restarting: there has been none
        found = {"phase": f"refused: {error}"}
    assert found["phase"] in {"completed", "rolled-back", "refused", "refused: HTTP Error 404: Not Found"}
    assert (found["phase"] == "completed") == ("is running the new version" in text), (found, text)
    expect(page.locator("header.job .chip")).to_have_text("running")
