"""Keys as the page of a job's state shows them, and what it sends back for one that is chosen: the very key.

The page's own modules run in a browser with answers made here.
"""

import json
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
import pytest
from playwright.sync_api import expect
from tests.ui.browser import Visit

from penstock.core.errors import UsageError
from penstock.kernels.keys.key_text import json_value, parse_key
from penstock.rest import server

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]

UI = Path(server.__file__).parent / "ui"
HOST = "http://penstock.test"
PAGE = """<!doctype html><html lang="en"><title>state</title><main></main><script type="module">
import { render } from "./dom.js";
import { load, view } from "./state.js";
const [id, ui] = ["j", {}];
const update = async () => {
  const data = await load({ id, ui });
  render(document.querySelector("main"), view({ id, data, ui, update }));
};
update();
</script>"""
BIG = 1 << 53
PART = {
    "subtask": 0,
    "key-groups": [0, 127],
    "rows": 2,
    "bytes": 9,
    "largest-groups": [],
    "rows-by-group": {"groups": 128, "rows": [2]},
}


class Cluster:
    """Answers of a JobManager of which one state has `keys`: rows of key columns of `schema`."""

    def __init__(self, page, schema, keys):
        self.schema, self.keys, self.asked, self.shares = schema, keys, [], [0.5] * len(keys)
        page.route(f"{HOST}/**", self._answer)

    def _answer(self, route):
        url = urlsplit(route.request.url)
        if url.path == "/ui/":
            route.fulfill(body=PAGE, content_type="text/html")
        elif url.path.startswith("/ui/"):
            route.fulfill(path=UI / url.path.removeprefix("/ui/"), content_type="text/javascript")
        else:
            try:
                route.fulfill(body=json.dumps(self._found(url)), content_type="application/json")
            except UsageError as error:
                route.fulfill(status=400, body=json.dumps({"errors": [str(error)]}), content_type="application/json")

    def _found(self, url):
        named = {"uid": "op", "name": "__seen", "title": "seen"}
        shown = [{"key": json_value(key), "rows": 1, "subtask": 0} for key in self.keys]
        if url.path.endswith("/state"):
            kinds = [f"{field.name} {field.type}" for field in self.schema]
            return {"states": [{**named, "key": kinds, "schema": [], "rows": 2, "bytes": 9, "subtasks": [PART]}]}
        if url.path.endswith("/hot-keys"):
            return {
                "operators": [
                    {"uid": "op", "keys": [{**key, "share": s} for key, s in zip(shown, self.shares, strict=True)]}
                ]
            }
        if url.path.endswith("/keys"):
            return {**named, "keys": [{**key, "key-group": 3} for key in shown], "next": None}
        (key,) = parse_key(parse_qs(url.query, keep_blank_values=True)["key"], self.schema).to_pylist()
        self.asked.append(key)
        columns = [{"name": "value", "type": "int64"}]
        place = {"key": json_value(key), "key-group": 3, "subtask": 0}
        return {**named, **place, "schema": columns, "rows": [{"value": -BIG - 1}]}


@pytest.fixture
def page_of(browser):
    with Visit(browser, HOST) as visit:

        def opened(kinds, keys):
            schema = pa.schema(list(kinds.items()))
            cluster = Cluster(visit.page, schema, [dict(zip(kinds, key, strict=True)) for key in keys])
            visit.page.goto(f"{HOST}/ui/")
            visit.page.get_by_role("button", name="Browse keys").click()
            return visit.page, cluster

        yield opened


def chosen(page, cluster, where):
    """The texts of the buttons of all keys, each with what is asked for when it is chosen."""
    found, buttons = [], where.get_by_role("button")
    expect(buttons).to_have_count(len(cluster.keys))
    for button in buttons.all():
        assert button.inner_text().strip(), "nothing to read"
        with page.expect_response(lambda answer: "?key=" in answer.url) as answer:
            button.click()
        assert answer.value.ok, answer.value.text()
        found.append((button.inner_text(), cluster.asked.pop()))
    return found


def test_whole_numbers_are_shown_and_asked_for_digit_by_digit(page_of):
    numbers = [7, -7, BIG - 1, BIG, BIG + 1, BIG + 2, -BIG - 1, (1 << 63) - 1, -(1 << 63)]
    page, cluster = page_of({"k": pa.int64()}, [(n,) for n in numbers])
    meant = [(str(n), {"k": n}) for n in numbers]
    assert chosen(page, cluster, page.get_by_role("table", name="Keys of op / seen")) == meant
    assert chosen(page, cluster, page.get_by_role("list", name="Hottest keys of op")) == meant
    expect(page.locator("#answer")).to_have_text(f'op / seen of {{"k":"{numbers[-1]}"}}')
    expect(page.get_by_role("table", name="Rows of the key").get_by_role("cell")).to_have_text(str(-BIG - 1))


def test_a_small_share_of_a_key_is_not_shown_as_zero(page_of):
    page, cluster = page_of({"k": pa.int64()}, [(1,), (2,), (3,)])
    cluster.shares = [0.5, 0.0012, 0.0004]
    page.reload()
    keys = page.get_by_role("list", name="Hottest keys of op").get_by_role("listitem")
    expect(keys).to_have_text(["150 %", "20.1 %", "3< 0.1 %"])


def test_keys_of_several_columns_have_all_their_digits_too(page_of):
    keys = [(BIG + 1, "a", 0.5), (BIG + 2, "9007199254740993", 1e300), (None, "", -3.0)]
    page, cluster = page_of({"k": pa.uint64(), "name": pa.string(), "at": pa.float64()}, keys)
    found = chosen(page, cluster, page.get_by_role("table", name="Keys of op / seen"))
    assert [tuple(key.values()) for _, key in found] == keys


def test_texts_that_are_empty_blank_or_look_like_json_are_found(page_of):
    texts = ["", " ", "\n\t", "[1]", "[1", '{"k": "x"}', ' ["a"]', "{", "null", "7", '"', "a b", " a", "\u3000"]
    page, cluster = page_of({"k": pa.string()}, [(text,) for text in texts])
    found = chosen(page, cluster, page.get_by_role("table", name="Keys of op / seen"))
    assert [key["k"] for _, key in found] == texts
    assert len({shown for shown, _ in found}) == len(texts), "no two look the same"


def test_bytes_that_are_empty_are_found(page_of):
    page, cluster = page_of({"k": pa.binary()}, [(b"",), (b"\x00\xff",)])
    meant = [('[""]', {"k": b""}), ("AP8=", {"k": b"\x00\xff"})]
    assert chosen(page, cluster, page.get_by_role("table", name="Keys of op / seen")) == meant
