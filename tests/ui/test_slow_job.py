"""A reader who knows nothing of the job finds its slow operator: what is slow, why, and since when."""

import json
import re
import urllib.request

import pytest
from playwright.sync_api import expect

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(240)]


def test_the_slow_operator_is_named_from_the_first_page_on(visit, slow_job):
    page = visit.go()
    row = page.get_by_role("row").filter(has_text="order-risks")
    expect(row).to_contain_text("rate orders is slow")
    row.get_by_role("link", name="order-risks").click()

    first = page.get_by_role("list", name="What is to be said").get_by_role("listitem").first
    expect(first).to_contain_text("rate orders is slow")
    expect(first).to_contain_text(re.compile(r"busy \d+ % of the time"))
    expect(first).to_contain_text(re.compile(r"It holds back orders \(\d+ % of its time\)"))
    expect(first).to_contain_text(re.compile(r"since \d\d:\d\d:\d\d, for \d+"))

    cards = page.get_by_role("region", name="Job graph").get_by_role("button")
    expect(cards).to_have_count(3)
    marked = cards.filter(has=page.get_by_text(re.compile("^slow")))
    expect(marked).to_have_count(1)
    expect(marked).to_contain_text("rate orders")
    # the figures of one second: a subtask that waits at a barrier is idle in some of them
    page.wait_for_function(
        """() => {
            const cards = [...document.querySelectorAll(".card")];
            const busy = cards.map((card) => Number(/(\\d+) % busy/.exec(card.innerText)[1]));
            const marked = cards.findIndex((card) => card.matches(".culprit"));
            return busy[marked] >= 50 && busy[marked] === Math.max(...busy);
        }"""
    )
    expect(cards.filter(has_text="orders").first).to_have_class(re.compile("held"))


def test_checkpoints_are_listed_as_they_are(visit, slow_job):
    page = visit.go(f"jobs/{slow_job.job_id}")
    page.get_by_role("link", name="Checkpoints").click()
    table = page.get_by_role("table", name="History of checkpoints")
    expect(table.get_by_role("row").filter(has_text="completed").nth(1)).to_be_visible()
    known = slow_job.client.checkpoints(slow_job.job_id)["latest"]["completed"]["id"]
    expect(table.get_by_role("rowheader", name=str(known), exact=True)).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("Durations of the last"))).to_be_visible()
    parts = page.get_by_role("region", name=f"Checkpoint {known}, subtask by subtask")
    table.get_by_role("button", name=str(known), exact=True).click()
    said = re.search(r"Subtask (\d) of (.+) was last", parts.locator(".note").inner_text())
    acks = {}
    for vertex in slow_job.client.job(slow_job.job_id)["vertices"]:
        for index, at in acknowledged(slow_job, known, vertex["id"]):
            acks[vertex["name"], index] = at
    assert acks[said[2], int(said[1])] == max(acks.values())
    expect(parts.get_by_role("row")).to_have_count(1 + len(acks))


def acknowledged(job, checkpoint, vertex):
    """When each subtask of a vertex was done with a checkpoint, as Flink's path says it."""
    url = f"{job.client.url}/v1/jobs/{job.job_id}/checkpoints/details/{checkpoint}/subtasks/{vertex}"
    with urllib.request.urlopen(url, timeout=30) as answer:
        return [(subtask["index"], subtask["ack_timestamp"]) for subtask in json.load(answer)["subtasks"]]


def test_the_flame_graph_names_the_slow_function(visit, slow_job):
    page = visit.go(f"jobs/{slow_job.job_id}")
    page.get_by_role("region", name="Job graph").get_by_role("button").filter(has_text="rate orders").click()
    page.get_by_role("button", name="Flame graph").press("Enter")
    own = page.get_by_role("list", name="Your own lines").get_by_role("listitem")
    expect(own.first).to_contain_text(re.compile(r"Rate\.process.*rate_orders\.py:\d+"))
    share = lambda item: int(re.search(r"(\d+) %", item.inner_text())[1])
    assert sum(share(item) for item in own.all()) > 30

    tree = page.get_by_role("tree")
    root = tree.get_by_role("treeitem").first
    expect(root).to_have_accessible_name(re.compile(r"root: 100 %"))
    widest_leaf = tree.evaluate(
        """(tree) => {
            const path = (call) => JSON.parse(call.dataset.path);
            const inside = (outer, inner) => inner.length > outer.length && outer.every((name, i) => name === inner[i]);
            const calls = [...tree.children];
            const leaves = calls.filter((call) => !calls.some((other) => inside(path(call), path(other))));
            return leaves.sort((a, b) => b.offsetWidth - a.offsetWidth)[0].textContent;
        }"""
    )
    assert re.match(r"Rate\.process.*\(rate_orders\.py:\d+\)", widest_leaf)

    # by keys: down to the widest call, in to see it alone, out again
    root.focus()
    page.keyboard.press("ArrowDown")
    focused = page.locator(":focus")
    expect(focused).to_have_attribute("aria-level", "2")
    name = focused.inner_text()
    page.keyboard.press("Enter")
    expect(tree.get_by_role("treeitem").first).to_have_text(name)
    page.keyboard.press("Escape")
    expect(tree.get_by_role("treeitem").first).to_have_text("root")

    page.get_by_role("searchbox", name="Search").fill("rate_orders")
    expect(page.get_by_text(re.compile(r"Found in \d+ % of the samples"))).to_be_visible()
    assert tree.locator(".hit").count() >= 1
    page.get_by_role("button", name="Waiting", exact=True).click()
    expect(page.get_by_role("button", name="Waiting", exact=True)).to_have_attribute("aria-pressed", "true")
