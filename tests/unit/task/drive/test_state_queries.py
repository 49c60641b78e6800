"""What a subtask answers when it is asked wrongly, or for more than is shown at once; and in its own thread only."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import NamedTuple

import pyarrow as pa
import pytest
from tests.property.harness.functions import function_job
from tests.property.harness.job import KEY_GROUPS

import penstock as ps
from penstock.core.keygroup import HASH_MAX, HASH_MIN
from penstock.rpc.messages import AskSubtask
from penstock.state.keys.key_index import KeyCounts
from penstock.task.drive.state_queries import answer

SCHEMA = pa.schema([pa.field("k", pa.string()), pa.field("n", pa.int64(), nullable=False)])


class Out(NamedTuple):
    k: str


class Listed(ps.KeyedProcessFunction):
    numbers: ps.ListState[int] = ps.list_state()
    short: ps.ListState[int] = ps.list_state(ttl="1s")

    def process(self, row, ctx) -> Iterator[Out]:
        self.numbers.append(row.n)
        self.short.append(row.n)
        return iter(())


@pytest.fixture
def job():
    with function_job(Listed(), SCHEMA, dict.fromkeys(f"k{n}" for n in range(50))) as job:
        yield job


def ask(job, what="state", stores=None, **given):
    values = {"uid": "op", "state": "numbers", "key": ("k1",), "most": 100, **given}
    query = AskSubtask(job_id="j", request_id="1", vertex_id="v", subtask=0, what=what, **values)
    deployment = SimpleNamespace(
        settings=SimpleNamespace(key_groups=KEY_GROUPS), parallelism=1, execution=SimpleNamespace(subtask=0)
    )
    sent = []
    answer(query, (deployment, sent.append), None, [job.subtasks[0][1]] if stores is None else stores)
    return sent[0]


@pytest.mark.parametrize(
    ("given", "kind", "error"),
    [
        ({"uid": "other"}, "not-found", "operator 'other' keeps no state by key"),
        ({"state": "number"}, "not-found", "'op' has no state 'number'"),
        ({"key": ("a", "b")}, "usage", "the key has 1 columns (k string), but 2 values are given"),
    ],
)
def test_a_wrong_question_is_answered_with_what_is_wrong(job, given, kind, error):
    found = ask(job, **given)
    assert found.kind == kind
    assert found.error.startswith(error)


def test_a_fault_while_answering_ends_no_subtask(job):
    found = ask(job, stores=[SimpleNamespace(uid="op", tables=None)])
    assert "AttributeError" in found.error
    assert found.kind == ""


def test_no_more_rows_than_asked_for_and_that_there_are_more(job):
    job.push(0, [("k1", n) for n in range(10)])
    found = ask(job, most=4).answer
    assert [row["value"] for row in found["rows"]] == [0, 1, 2, 3]
    assert found["more"]
    assert found["schema"][-1] == {"name": "value", "type": "int64"}
    assert found["key"] == {"k": "k1"}
    assert not ask(job, most=10).answer["more"]


def test_what_has_expired_is_not_shown(job):
    job.push(0, [("k1", 1)])
    job.clock.advance(600)
    job.push(0, [("k1", 2)])
    assert [row["value"] for row in ask(job, state="short").answer["rows"]] == [1, 2]
    job.clock.advance(600)
    job.push(0, [("k2", 3)])
    assert [row["value"] for row in ask(job, state="short").answer["rows"]] == [2]


def test_the_listing_says_how_much_there_is_by_key_group(job):
    job.push(0, [(f"k{n % 50}", n) for n in range(200)])
    states = {state["name"]: state for state in ask(job, "states").answer["states"]}
    numbers = states["numbers"]
    assert (numbers["rows"], numbers["key-groups"]) == (200, [0, KEY_GROUPS - 1])
    assert numbers["bytes"] > 0
    assert numbers["key"] == ["k string"]
    assert [column["name"] for column in numbers["schema"]] == ["__entry", "value"]
    largest = numbers["largest-groups"]
    assert len(largest) == 5
    assert largest == sorted(largest, key=lambda group: (-group["rows"], group["key-group"]))


@pytest.mark.parametrize("most", [1, 7, 10, 49, 50, 51])
def test_keys_come_page_by_page_each_looked_for_once(job, monkeypatch, most):
    job.push(0, [(f"k{n}", n) for n in range(50)])
    looked, page = [], KeyCounts.page
    monkeypatch.setattr(KeyCounts, "page", lambda *given: looked.append(given) or page(*given))
    pages, low = [], HASH_MIN
    while low is not None:
        found = ask(job, "keys", between=(low, HASH_MAX), most=most).answer
        pages.append([key["key"]["k"] for key in found["keys"]])
        low = None if found["next"] is None else found["next"] + 1
    assert sorted(key for keys in pages for key in keys) == sorted(f"k{n}" for n in range(50))
    assert [len(keys) for keys in pages[:-1]] == [most] * (len(pages) - 1)
    assert len(looked) == len(pages) == -(-50 // most)


def test_a_range_without_keys_has_none_behind_it(job):
    job.push(0, [("k1", 1)])
    assert ask(job, "keys", between=(HASH_MAX, HASH_MAX)).answer == {"keys": [], "next": None}
