"""Flink's dashboard, from its own distribution, in a browser: every page on a penstock job loads without an error."""

import json
import re
import urllib.request

import pytest
from tests.flink_tools.dashboard import dashboard
from tests.ui.browser import Visit, chromium

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]

VERTEX_TABS = (
    "detail", "subtasks", "taskmanagers", "watermarks", "accumulators", "backpressure", "metrics", "flamegraph",
)  # fmt: skip
CHECKPOINT_TABS = ("Overview", "History", "Summary", "Configuration")


@pytest.fixture(scope="module")
def seen(place):
    """A cluster with a running job, its id, and a browser."""
    job = place.submit("seen")
    with chromium() as browser:
        yield place, job, browser
    place.cancel(job)


@pytest.fixture
def looking(seen):
    """The dashboard before the cluster: the visit, and what was asked of our API."""
    place, _job, browser = seen
    with dashboard(place.cluster.rest_url) as (url, passed), Visit(browser, url) as visit:
        yield visit, passed
        # its editor makes workers out of what it has loaded
        visit.requests[:] = [asked for asked in visit.requests if not asked.startswith("blob:")]


def opened(visit, where, *texts):
    """Open a page by what stands behind its #, and wait for texts on it."""
    visit.page.goto("about:blank")
    visit.page.goto(f"{visit.url}/#/{where}")
    for text in texts:
        visit.page.get_by_text(text).first.wait_for()
    visit.page.wait_for_load_state("networkidle")
    assert not visit.problems, (where, visit.problems)


def test_a_page_of_a_job(looking, seen):
    """The list of jobs, and a job's graph and checkpoints."""
    (visit, passed), (_place, job, _browser) = looking, seen
    opened(visit, "overview", "Running", "seen")
    opened(visit, f"job/running/{job}/overview", "seen", "RUNNING")
    opened(visit, f"job/running/{job}/checkpoints", "Checkpoint Counts")
    assert passed
    assert [entry for entry in passed if entry[2] >= 400] == []


@pytest.mark.nightly
def test_every_page_of_a_job(looking, seen):
    (visit, passed), (place, job, _browser) = looking, seen
    with place.cluster.client() as client:
        vertices = client.job(job)["vertices"]
    opened(visit, "overview", "Running", "seen")
    opened(visit, f"job/running/{job}/overview", "seen", "RUNNING", vertices[-1]["name"][:8])
    for tab in VERTEX_TABS:
        opened(visit, f"job/running/{job}/overview/{vertices[-1]['id']}/{tab}")
    opened(visit, f"job/running/{job}/overview/{vertices[0]['id']}/backpressure", "OK")
    opened(visit, f"job/running/{job}/overview/{vertices[0]['id']}/flamegraph")
    visit.page.get_by_text("Mixed", exact=True).click()
    # what this subtask mostly does; a frame too narrow for its name shows none
    visit.page.get_by_text(re.compile(r"RunLoop\._wait \(threads\.py")).first.wait_for()
    opened(visit, f"job/running/{job}/timeline")
    opened(visit, f"job/running/{job}/exceptions")
    opened(visit, f"job/running/{job}/configuration", "Execution configuration")
    opened(visit, f"job/running/{job}/checkpoints", "Checkpoint Counts")
    for tab in CHECKPOINT_TABS:
        visit.page.locator("flink-job-checkpoints").get_by_role("tab", name=tab).click()
        visit.page.wait_for_load_state("networkidle")
    assert [entry for entry in passed if entry[2] >= 400] == []


@pytest.mark.nightly
def test_every_page_of_the_cluster(looking, seen):
    (visit, passed), (place, *_others) = looking, seen
    with place.cluster.client() as client:
        (manager,) = client.taskmanagers()
    opened(visit, "task-manager", manager["id"])
    for tab in ("metrics", "logs", "stdout", "log-list", "thread-dump", "profiler"):
        opened(visit, f"task-manager/{manager['id']}/{tab}")
    for tab in ("metrics", "config", "logs", "stdout", "log", "thread-dump", "profiler"):
        opened(visit, f"job-manager/{tab}")
    assert [entry for entry in passed if entry[2] >= 400] == []


def test_threads_of_a_taskmanager_and_its_workers_and_the_jobmanagers_log(seen):
    place, *_others = seen

    def asked(path):
        with urllib.request.urlopen(place.cluster.rest_url + path, timeout=30) as answer:
            return answer.read().decode()

    with place.cluster.client() as client:
        (manager,) = client.taskmanagers()
    found = json.loads(asked(f"/taskmanagers/{manager['id']}/thread-dump"))["threadInfos"]
    texts = {info["threadName"]: info["stringifiedThreadInfo"] for info in found}
    assert "run_taskmanager" in texts["MainThread"]
    (control,) = {text for name, text in texts.items() if name.endswith("/MainThread")}
    assert "worker.py" in control
    assert any("/ps-" in name for name in texts), "the threads of its subtasks"
    (log,) = json.loads(asked("/jobmanager/logs"))["logs"]
    assert "POST" in asked("/jobmanager/log"), "what changed something is noted there"
    assert asked(f"/jobmanager/logs/{log['name']}") == asked("/jobmanager/stdout")
