"""Every page, light and dark, on a laptop and on something narrow: names, headings, contrast, and the keyboard."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect
from tests.ui.browser import Visit

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]
CHECKS = Path(__file__).with_name("checks.js").read_text(encoding="utf-8")
PAGES = [
    "",
    "taskmanagers",
    "submit",
    "logs",
    *(f"jobs/JOB{tab}" for tab in ("", "/checkpoints", "/state", "/exceptions", "/story")),
]
#: Of the gate: a page of a table, one of a form, one with tabs and a graph.
BY_KEYBOARD = ("", "submit", "jobs/JOB")
#: Where the focus is, as a path of the element, and whether a reader sees that.
FOCUSED = """() => {
    const element = document.activeElement;
    const order = [...document.querySelectorAll("*")].indexOf(element);
    const style = getComputedStyle(element);
    const seen = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
    const name = element.getAttribute("aria-label") || element.textContent;
    return [order, element.tagName, name.trim().slice(0, 40), seen];
}"""
REACHABLE = """() => [...document.querySelectorAll("a, button:not(:disabled), input, select, [tabindex='0']")]
    .filter((e) => e.checkVisibility()).length"""


def opened(visit, where, job_id):
    page = visit.go(where.replace("JOB", job_id) if where else "")
    expect(page.locator("#pulse")).to_have_text("connected")
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_pages_can_be_read(browser, slow_job, scheme):
    wrong = {}
    with Visit(browser, slow_job.client.url, scheme=scheme) as visit:
        for where in PAGES:
            page = opened(visit, where, slow_job.job_id)
            assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == scheme
            wrong[where] = page.evaluate(CHECKS)
        page.set_viewport_size({"width": 400, "height": 900})
        for where in PAGES if scheme == "light" else ():
            wrong[f"{where} (narrow)"] = opened(visit, where, slow_job.job_id).evaluate(CHECKS)
    assert not any(wrong.values()), "\n".join(f"{where}: {text}" for where, texts in wrong.items() for text in texts)


def test_the_checks_find_what_is_wrong(visit):
    page = opened(visit, "submit", "")
    page.evaluate(
        """() => document.querySelector("main").insertAdjacentHTML("beforeend",
            `<h4>far down</h4><img src="icon.svg"><input id="skip"><button></button><a>nowhere</a>
             <p class="note" id="dim">dim</p><table><tr><th>a</th></tr></table>`)"""
    )
    page.evaluate("""() => document.getElementById("dim").style.setProperty("color", "#bbbbbb")""")
    found = "\n".join(page.evaluate(CHECKS))
    for text in (
        "level 4",
        "no text in its place",
        "given twice",
        "has no name",
        "leads nowhere",
        "contrast",
        "caption",
        "what it heads",
    ):
        assert text in found, text


@pytest.mark.parametrize(
    "where", [page if page in BY_KEYBOARD else pytest.param(page, marks=pytest.mark.nightly) for page in PAGES]
)
def test_the_keyboard_reaches_everything_in_order(visit, slow_job, where):
    page = opened(visit, where, slow_job.job_id)
    page.evaluate("document.activeElement.blur()")
    page.wait_for_function(f"({REACHABLE})() > 5")
    page.route("**/v1/**", lambda _route: None)  # the page stands still: rows that come above the focus are not passed
    stops = []
    for _ in range(page.evaluate(REACHABLE) + 40):
        page.keyboard.press("Tab")
        stop = page.evaluate(FOCUSED)
        if stop[1] == "BODY":
            break
        stops.append(stop)
    assert len(stops) >= page.evaluate(REACHABLE) - 1, stops
    assert stops[0][2] == "Skip to the content"
    orders = [order for order, *_ in stops]
    assert orders == sorted(orders), stops
    assert all(seen for *_, seen in stops), [stop for stop in stops if not stop[3]]


def test_a_vertex_is_chosen_by_keyboard_and_keeps_the_focus_over_refreshes(visit, slow_job):
    page = opened(visit, f"jobs/{slow_job.job_id}", slow_job.job_id)
    card = page.get_by_role("region", name="Job graph").get_by_role("button").last
    card.focus()
    page.keyboard.press("Enter")
    expect(card).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#vertex")).to_have_text(card.locator(".name").inner_text())
    with page.expect_response(lambda response: response.url.endswith("/health")):
        pass
    with page.expect_response(lambda response: response.url.endswith("/health")):
        pass
    expect(card).to_be_focused()


@pytest.mark.parametrize("width", [400, 500])
def test_the_header_fits_a_narrow_window(visit, slow_job, width):
    page = opened(visit, "jobs/JOB", slow_job.job_id)
    page.set_viewport_size({"width": width, "height": 800})
    outside = page.evaluate(
        """() => [...document.querySelectorAll(".top *")].map((e) => [e, e.getBoundingClientRect()])
            .filter(([e, box]) => box.width && box.bottom > 0 && (box.left < 0 || box.right > innerWidth + 0.5))
            .map(([e]) => e.outerHTML)"""
    )
    assert outside == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_every_vertex_says_how_far_its_event_time_is(visit, slow_job):
    page = opened(visit, "jobs/JOB", slow_job.job_id)
    cards = page.get_by_role("region", name="Job graph").get_by_role("button")
    expect(cards).to_have_count(3)
    for card in cards.all():
        expect(card).to_contain_text(re.compile(r"event time .*\d"))


def test_the_colours_can_be_chosen_and_are_remembered(visit, slow_job):
    page = opened(visit, "", slow_job.job_id)
    page.get_by_role("button", name="Use the dark colours").click()
    page.reload()
    expect(page.get_by_role("button", name="Use the light colours")).to_be_visible()
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"


def test_a_jobmanager_that_is_away_is_told_and_found_again(visit, slow_job):
    page = opened(visit, f"jobs/{slow_job.job_id}", slow_job.job_id)
    page.route("**/v1/**", lambda route: route.abort())
    expect(page.locator("#pulse")).to_have_text("not connected, trying again")
    expect(page.get_by_role("alert")).to_have_text("The JobManager does not answer.")
    expect(page.get_by_role("heading", level=1)).to_have_text("order-risks")
    page.unroute("**/v1/**")
    expect(page.locator("#pulse")).to_have_text("connected")
    expect(page.get_by_role("alert")).to_have_count(0)
    visit.wanted = "ERR_FAILED"  # the browser tells of each request that was cut
