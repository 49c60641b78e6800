"""Every lifecycle action on a running job by the web interface alone; exact after each."""

import pytest
from tests.cluster import lifecycle
from tests.ui.browser import Visit
from tests.ui.lifecycle_way import BrowserWay

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.nightly
def test_a_life(browser, tmp_path):
    with lifecycle.cluster(tmp_path) as running, Visit(browser, running.rest_url) as visit:
        lifecycle.live(lifecycle.Place(running, tmp_path, "life-by-ui"), BrowserWay(visit))
