"""A job with a hot key under back-pressure, and the memory of its TaskManager, as the web interface shows them."""

import re

import pytest
from playwright.sync_api import expect
from tests.support.leases import PATIENT
from tests.support.waiting import wait_until
from tests.ui import jobs
from tests.ui.browser import Visit

from penstock.client.local_cluster import LocalCluster, LocalClusterConfig

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]
MEMORY = {"PENSTOCK__TASKMANAGER__MEMORY": "2GB", "PENSTOCK__TASKMANAGER__MANAGED_MEMORY": "512MB"}
UNITS = {"B": 1, "kB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
SIZE = r"([\d.]+ (?:B|kB|MB|GB))"


@pytest.fixture(scope="module")
def hot_job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hot")
    config = LocalClusterConfig(
        taskmanagers=1, slots_per_taskmanager=2, directory=folder / "cluster", environment={**PATIENT, **MEMORY}
    )
    with LocalCluster(config) as cluster:
        yield jobs.submit(cluster.rest_url, folder, hot_key=True)


@pytest.fixture
def visit(browser, hot_job):
    with Visit(browser, hot_job.client.url) as found:
        yield found


def size(text):
    """The bytes of a text like 1.50 MB."""
    number, unit = text.split()
    return float(number) * UNITS[unit]


def column(page, title):
    """The cells of a column of the table of subtasks, by subtask; none without that column."""
    table = page.get_by_role("table", name="Subtasks")
    titles = table.get_by_role("columnheader").all_inner_texts()
    if title not in titles:
        return []
    cells = f":is(th, td):nth-child({titles.index(title) + 1})"
    return table.locator("tbody tr").locator(cells).all_inner_texts()


def test_the_share_of_the_hottest_key_and_the_queued_time_are_shown(visit, hot_job):
    page = visit.go(f"jobs/{hot_job.job_id}")
    cards = page.get_by_role("region", name="Job graph").get_by_role("button")
    rating = cards.filter(has_text="rate orders")
    expect(rating).to_contain_text(re.compile(r"2 subtasks, hottest key (7[5-9]|8[0-5]) %"))
    rating.click()
    expect(page.locator("#vertex")).to_have_text("rate orders")

    # the other subtask has the other keys, each with a small share of its rows
    shares = lambda: sorted(int(cell.removesuffix(" %")) for cell in column(page, "Hottest key"))
    in_one = lambda: len(shares()) == 2 and shares()[0] < 50 and shares()[1] >= 75
    wait_until(in_one, lambda: f"one subtask with a hot key: {column(page, 'Hottest key')}", step=0.2)

    queued = re.compile(rf"{SIZE}, (?:\d+ ms|[\d.]+ s|\d+ min.*)")
    waiting = lambda: [found for cell in column(page, "Queued") if (found := queued.fullmatch(cell)) and size(found[1])]
    wait_until(waiting, lambda: f"rows that are queued: {column(page, 'Queued')}", step=0.2)
    wait_until(
        lambda: any(not cell.endswith(", 0 ms") for cell in column(page, "Queued")),
        lambda: f"time that queued rows take: {column(page, 'Queued')}",
        step=0.2,
    )

    source = cards.filter(has_text="orders").first
    expect(source).to_contain_text(re.compile(r"(?<!\d)[1-9]\d+ % back-pressured"))
    expect(source).not_to_contain_text("hottest key")
    source.click()
    expect(page.locator("#vertex")).to_have_text(source.locator(".name").inner_text())
    expect(page.get_by_role("table", name="Subtasks").get_by_role("row")).to_have_count(2)
    assert (column(page, "Hottest key"), column(page, "Queued")) == ([], []), "it has no input"


def test_the_memory_of_a_taskmanager_is_shown_by_part(visit, hot_job):
    page = visit.go("taskmanagers")
    (manager,) = hot_job.client.taskmanagers()
    panel = page.get_by_role("region", name=manager["id"])
    parts = re.compile(f"{SIZE} of memory: {SIZE} framework, {SIZE} tasks, {SIZE} network, {SIZE} managed")
    line = panel.get_by_text(parts)
    expect(line).to_be_visible()
    total, *shown = (size(text) for text in parts.search(line.inner_text()).groups())
    known = manager["memoryConfiguration"]
    assert total == known["totalProcessMemory"] == 2 << 30
    assert shown == pytest.approx(
        [known[part] for part in ("frameworkHeap", "taskHeap", "networkMemory", "managedMemory")], rel=0.01
    )
    assert shown[-1] == 512 << 20
    assert sum(shown) == pytest.approx(total, rel=0.01)

    network = re.compile(f"network memory: {SIZE} guaranteed to slots, {SIZE} of {SIZE} shared lent, {SIZE} used")
    line = panel.get_by_text(network)
    expect(line).to_be_visible()
    guaranteed, lent, shared, used = (size(text) for text in network.search(line.inner_text()).groups())
    assert guaranteed + shared == pytest.approx(shown[2], rel=0.01)
    assert lent <= shared
    assert used <= shown[2]
