"""Takes the pictures of the web interface in docs/pictures, of a real job: `python -m tests.ui.pictures`."""

import tempfile
from pathlib import Path

from playwright.sync_api import expect
from tests.support.waiting import wait_until
from tests.ui import jobs
from tests.ui.browser import Visit, chromium

from penstock.client.local_cluster import LocalCluster, LocalClusterConfig

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
#: Until the charts have something to show, and the last refresh has been drawn.
SEEN_CHECKPOINTS, SETTLED_MS = 6, 2_500


def take(browser, job, folder):
    """Visit the pages, one after the other."""

    def shot(name, where, scheme, look=lambda page: None):
        with Visit(browser, job.client.url, scheme=scheme) as visit:
            page = visit.go(where)
            expect(page.locator("#pulse")).to_have_text("connected")
            look(page)
            page.wait_for_timeout(SETTLED_MS)
            page.screenshot(path=FOLDER / f"{name}.png")

    at = f"jobs/{job.job_id}"
    shot("job", at, "light")
    shot("job-dark", at, "dark")
    shot("overview", "", "light")
    shot("checkpoints", f"{at}/checkpoints", "dark")
    shot("state", f"{at}/state", "light", look_up)
    (folder / "broken").touch()
    wait_until(lambda: job.client.exceptions(job.job_id)["root-exception"], "a failure")
    (folder / "broken").unlink()
    shot("exceptions", f"{at}/exceptions", "light")


def look_up(page):
    """Ask for a key."""
    form = page.locator("form.ask")
    form.get_by_label("State").select_option(label="rate / seen (by user_id int64)")
    form.get_by_label("Key").fill("7")
    form.get_by_role("button", name="Look up").click()


def main():
    """Run the slow job for as long as it takes."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name, chromium() as browser:
        folder = Path(name)
        config = LocalClusterConfig(taskmanagers=1, slots_per_taskmanager=3, directory=folder / "cluster")
        with LocalCluster(config) as cluster:
            job = jobs.submit(cluster.rest_url, folder, work=300)
            done = lambda: job.client.summary(job.job_id).get("checkpoints-completed", 0)
            wait_until(lambda: done() >= SEEN_CHECKPOINTS, "checkpoints", seconds=240)
            take(browser, job, folder)


if __name__ == "__main__":
    main()
