"""Takes pictures of Flink's dashboard on a penstock job, for docs/pictures: `python -m tests.flink_tools.pictures`."""

import tempfile
from pathlib import Path

from tests.flink_tools import installation
from tests.flink_tools.cluster import Place
from tests.flink_tools.dashboard import dashboard
from tests.support.waiting import wait_until
from tests.ui.browser import Visit, chromium

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
SEEN_CHECKPOINTS, SETTLED_MS = 8, 4_000


def main():
    """Run a job for as long as it takes."""
    installation.ensure(print)
    with tempfile.TemporaryDirectory() as name, chromium() as browser:
        place = Place(Path(name))
        with place.cluster:
            job = place.submit("order-totals")
            done = lambda: place.checkpoints(job)
            wait_until(lambda: done() >= SEEN_CHECKPOINTS, "checkpoints", seconds=240)
            with dashboard(place.cluster.rest_url) as (url, _), Visit(browser, url) as visit:
                for picture, where in {"flink-job": "overview", "flink-checkpoints": "checkpoints"}.items():
                    visit.page.goto(f"{url}/#/job/running/{job}/{where}")
                    visit.page.get_by_text("order-totals").first.wait_for()
                    visit.page.wait_for_timeout(SETTLED_MS)
                    visit.page.screenshot(path=FOLDER / f"{picture}.png")
                visit.requests.clear()  # its editor makes workers out of what it has loaded


if __name__ == "__main__":
    main()
