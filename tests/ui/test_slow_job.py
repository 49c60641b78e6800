"""A reader who knows nothing of the job finds its slow operator: what is slow, why, and since when."""

import json
import re
import urllib.request

import pyarrow as pa
import pytest
from playwright.sync_api import expect
from tests.support.waiting import wait_until

from penstock.core.keygroup import DEFAULT_KEY_GROUPS, key_group_of
from penstock.kernels.keys.hashing import hash_columns

#: The text of the widest call of the user's code in a flame graph that calls no other code of the user.
WIDEST_OWN = """(tree) => {
    const path = (call) => JSON.parse(call.dataset.path);
    const inside = (outer, inner) => inner.length > outer.length && outer.every((name, i) => name === inner[i]);
    const calls = [...tree.querySelectorAll('.call.user')];
    const leaves = calls.filter((call) => !calls.some((other) => inside(path(call), path(other))));
    return leaves.sort((a, b) => b.offsetWidth - a.offsetWidth)[0]?.textContent ?? '';
}"""
#: As the job's generator has them.
USERS = 50
pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]


def test_the_slow_operator_is_named_from_the_first_page_on(visit, slow_job):
    page = visit.go()
    row = page.get_by_role("row").filter(has_text="order-risks")
    expect(row).to_contain_text("rate orders is slow")
    # what, since when and why, on the first page already
    expect(row).to_contain_text(re.compile(r"since \d\d:\d\d:\d\d, for \d+"))
    expect(row.get_by_text(re.compile(r"busy \d+ % of the time.*It holds back orders"))).to_be_visible()
    row.get_by_role("link", name="order-risks").click()

    first = page.get_by_role("list", name="Findings").get_by_role("listitem").first
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
    expect(table.get_by_role("cell", name="aligned checkpoint", exact=True).first).to_be_visible()
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


def test_completed_checkpoints_in_a_row_are_one_entry_of_the_story(visit, slow_job):
    wait_until(lambda: slow_job.client.checkpoints(slow_job.job_id)["counts"]["completed"] > 4, "five checkpoints")
    page = visit.go(f"jobs/{slow_job.job_id}/story")
    table = page.get_by_role("table", name="Story of the job")
    series = re.compile(r"^checkpoints \d+ to \d+ completed, \d+ in ")
    expect(table.get_by_role("cell", name=series).first).to_be_visible()
    expect(table.get_by_role("cell", name="this job").first).to_be_visible()
    with page.expect_response(lambda response: "/jobs/order-risks/story?" in response.url):
        page.get_by_role("checkbox", name="All jobs named order-risks").check()


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
    shares = [share(item) for item in own.all()]
    assert shares[0] == max(shares) > 0, "how much that is depends on what else the machine does"

    tree = page.get_by_role("tree")
    root = tree.get_by_role("treeitem").first
    expect(root).to_have_accessible_name(re.compile(r"root: 100 %"))
    # where other processes take the processors, most of all time is spent waiting for one, and the kernel often takes
    # a thread off its processor where the engine asks for its CPU time: only the user's calls compare
    page.get_by_role("button", name="On CPU", exact=True).click()
    widest = lambda: tree.evaluate(WIDEST_OWN)
    slow = re.compile(r"Rate\.process.*\(rate_orders\.py:\d+\)")
    wait_until(lambda: slow.match(widest()), lambda: f"{slow.pattern} as the widest own call, not {widest()}", step=0.2)

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


def test_keys_are_browsed_and_those_of_one_group_looked_up(visit, slow_job):
    page = visit.go(f"jobs/{slow_job.job_id}/state")
    panel = page.get_by_role("region", name="rate / seen", exact=True)
    expect(panel.get_by_role("img", name=re.compile(r"Rows by key group: most in groups? \d+"))).to_be_visible()
    wait_until(lambda: len(bars(panel)) == USERS, lambda: f"{USERS} users in {bars(panel)}")

    form = page.get_by_role("form", name="Keys of rate / seen")
    form.get_by_label("Key group").press("Enter")  # all of them
    keys = page.get_by_role("table", name="Keys of rate / seen").locator("tbody").get_by_role("row")
    expect(keys).to_have_count(USERS)
    found = {int(key.get_by_role("rowheader").inner_text()): key for key in keys.all()}
    assert sorted(found) == list(range(USERS))
    group = int(found[7].get_by_role("cell").nth(1).inner_text())
    assert group == key_group_of_user(7)

    form.get_by_label("Key group").fill(str(group))
    form.get_by_role("button", name="Browse keys").click()
    expect(keys.filter(has_text="7").first).to_be_visible()
    expect(keys).to_have_count(sum(key_group_of_user(user) == group for user in range(USERS)))
    keys.get_by_role("button", name="7", exact=True).press("Enter")
    expect(page.locator("#answer")).to_have_text('rate / seen of {"user_id":7}')
    visit.wanted = "status of 400"
    form.get_by_label("Key group").fill("99999")
    form.get_by_role("button", name="Browse keys").click()
    expect(panel.get_by_role("alert")).to_contain_text("there is no key group 99999")


@pytest.mark.nightly
def test_keys_come_page_by_page(visit, slow_job):
    page = visit.go(f"jobs/{slow_job.job_id}/state")
    page.route(
        "**/keys?limit=50*", lambda route: route.continue_(url=route.request.url.replace("limit=50", "limit=20"))
    )
    page.get_by_role("form", name="Keys of rate / seen").get_by_role("button", name="Browse keys").click()
    panel = page.get_by_role("region", name="rate / seen", exact=True)
    keys = panel.get_by_role("table", name="Keys of rate / seen").get_by_role("rowheader")
    for shown in (20, 40, USERS):
        expect(keys).to_have_count(shown)
        if shown < USERS:
            panel.get_by_role("button", name="More keys").click()
    expect(panel.get_by_role("button", name="More keys")).to_have_count(0)
    assert sorted(map(int, keys.all_inner_texts())) == list(range(USERS))


def key_group_of_user(user):
    (key_hash,) = hash_columns(pa.record_batch({"user_id": pa.array([user])}), ("user_id",))
    return key_group_of(int(key_hash), DEFAULT_KEY_GROUPS)


def bars(panel):
    """Rows of the bars that are there, by their first key group: of a state of values one a key."""
    texts = panel.locator(".chart title").all_text_contents()
    found = [(int(n), int(rows)) for n, rows in re.findall(r"groups? (\d+).*?: (\d+) rows", "\n".join(texts))]
    assert len(found) == len(texts), texts
    return [first for first, rows in found for _ in range(rows)]


def test_a_source_tells_how_much_it_has_to_read(visit, slow_job):
    """As a source of Kafka does, which this job has none of."""
    page, source = visit.page, slow_job.client.job(slow_job.job_id)["vertices"][0]["id"]

    lag = {"recordsLagUnknown": 1}

    def lagging(route):
        answer = route.fetch()
        tasks = answer.json()["tasks"]
        tasks[f"{source}/0"] |= lag
        route.fulfill(response=answer, json={"tasks": tasks})

    page.route("**/penstock/jobs/*/metrics", lagging)
    visit.go(f"jobs/{slow_job.job_id}")
    card = page.get_by_role("region", name="Job graph").get_by_role("button").first
    expect(card).to_contain_text(re.compile(r"event time .*, lag not known yet"))
    lag = {"recordsLag": 12_345}
    expect(card).to_contain_text(re.compile(r"event time .*, 12\.3 k rows of lag"))
    whole = """(card) => {
        const name = card.querySelector(".name");
        name.textContent = "Window(tumbling 10s) -> Sink: order-totals-of-users";
        return [card, name].every((part) => part.scrollHeight <= part.clientHeight);
    }"""
    assert card.evaluate(whole), "all of it can be read"


def test_a_job_whose_parallelism_follows_the_slots_tells_its_bounds_and_what_it_waits_for(visit, slow_job):
    """As a job with the adaptive scheduler does, which this job has not."""
    page, told = visit.page, {}

    def scheduled(route):
        answer = route.fetch()
        route.fulfill(response=answer, json={**answer.json(), **told})

    page.route("**/penstock/jobs/*/summary", scheduled)
    visit.go(f"jobs/{slow_job.job_id}")
    expect(page.get_by_role("list", name="Findings")).to_be_visible()
    line = page.get_by_text("Adaptive scheduler: the parallelism follows the slots.")
    expect(line).to_have_count(0)
    slots = {"slots": 4, "least": 2, "most": 8, "rescale-at": None}
    for change, text in (
        ({"adaptive": slots}, "The job has 4 slots, between 2 and 8. It waits for 4 more."),
        ({"adaptive": {**slots, "rescale-at": 1}}, "between 2 and 8. It rescales to the free slots at 1 Jan 1970"),
        ({"adaptive": {**slots, "slots": 8}}, "The job has 8 slots, between 2 and 8."),
        ({"waits-for": "8 slots, or 2 at least; 1 is free"}, "The job waits for 8 slots, or 2 at least; 1 is free."),
    ):
        told |= change
        expect(line).to_contain_text(text)
    expect(line).not_to_contain_text("The job has")


def test_logs_of_all_processes_can_be_read(visit, slow_job):
    page = visit.go("taskmanagers")
    (manager,) = slow_job.client.taskmanagers()
    page.get_by_role("link", name="Log of the JobManager").click()
    expect(page.get_by_role("region", name="Log of the JobManager")).to_contain_text("POST")
    page.get_by_role("link", name="Task managers", exact=True).last.click()
    page.get_by_role("link", name=f"Log of {manager['id']}", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Log of {manager['id']}")
    expect(page.locator(".page")).to_contain_text(re.compile(r"The log is empty|\d\d:\d\d"))
    page.go_back()
    page.get_by_role("link", name=re.compile(rf"Log of {slow_job.job_id[:8]}")).first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(slow_job.job_id[:8])
