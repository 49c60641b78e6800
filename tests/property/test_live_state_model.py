"""What a running subtask says of a key is what its function would see next, and asking changes nothing.

Values, lists, maps and timers against a plain model, asked between any rows, freezes, crashes and rescales.
"""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import NamedTuple

import pyarrow as pa
from hypothesis import strategies as st
from tests.property.harness.backends import MEMORY, on
from tests.property.harness.functions import function_job
from tests.property.harness.histories import operations, play, step
from tests.property.harness.job import KEY_GROUPS

import penstock as ps
from penstock.core.keygroup import HASH_MAX, HASH_MIN
from penstock.rpc.messages import AskSubtask
from penstock.task.drive.state_queries import answer

KEYS = [None, "", *[f"key-{i}" for i in range(8)]]
SCHEMA = pa.schema(
    [
        pa.field("k", pa.string()),
        pa.field("what", pa.string(), nullable=False),
        pa.field("n", pa.int64(), nullable=False),
    ]
)


class Pair(NamedTuple):
    n: int
    text: str | None


class Out(NamedTuple):
    k: str | None


class Keeps(ps.KeyedProcessFunction):
    pair: ps.ValueState[Pair] = ps.value_state()
    numbers: ps.ListState[int | None] = ps.list_state()
    counts: ps.MapState[str, Pair] = ps.map_state()

    def process(self, row, ctx) -> Iterator[Out]:
        if row.what == "set":
            self.pair.update(Pair(row.n, None if row.n % 2 else str(row.n)))
            self.numbers.append(None if row.n % 5 == 0 else row.n)
            self.counts[str(row.n % 4)] = Pair(row.n, None)
            ctx.timers.event(1_000_000 * (row.n % 7) + 5)
        elif row.what == "drop":
            self.counts.pop(str(row.n % 4), None)
            ctx.timers.delete(1_000_000 * (row.n % 7) + 5)
        else:
            self.pair.clear()
            self.numbers.clear()
        return iter(())

    def on_timer(self, timestamp, ctx):
        return None


class Model:
    def __init__(self):
        self.pair, self.numbers, self.counts, self.timers = None, [], {}, set()

    def act(self, what, n):
        time = 1_000_000 * (n % 7) + 5
        if what == "set":
            self.pair = (n, None if n % 2 else str(n))
            self.numbers.append(None if n % 5 == 0 else n)
            self.counts[str(n % 4)] = n
            self.timers.add(time)
        elif what == "drop":
            self.counts.pop(str(n % 4), None)
            self.timers.discard(time)
        else:
            self.pair, self.numbers = None, []


def ask(job, key, state, *, subtask, most=1000):
    """Return what one subtask answers about a key."""
    given = {"what": "state", "key": ("[null]" if key is None else key,), "most": most}
    return asked(job, subtask, {**given, "state": state})


def keys_with_rows(job, state):
    """Ask every subtask for its keys, three at a time; return how many rows each has."""
    found, groups = [], []
    for subtask in range(len(job.subtasks)):
        low = HASH_MIN
        while low is not None:
            page = asked(job, subtask, {"what": "keys", "state": state, "between": (low, HASH_MAX), "most": 3})
            assert 0 < len(page["keys"]) <= 3 or not page["next"]
            assert {key["key"]["k"] for key in page["keys"]} <= set(job.owned(subtask))
            found += [(key["key"]["k"], key["rows"]) for key in page["keys"]]
            groups += [key["key-group"] for key in page["keys"]]
            low = None if page["next"] is None else page["next"] + 1
    assert groups == sorted(groups), "in the order of hashes"
    assert len(dict(found)) == len(found), "each once"
    return dict(found)


def asked(job, subtask, given):
    question = AskSubtask(job_id="j", request_id="7", vertex_id="v", subtask=subtask, uid="op", **given)
    deployment = SimpleNamespace(
        settings=SimpleNamespace(key_groups=KEY_GROUPS),
        parallelism=len(job.subtasks),
        execution=SimpleNamespace(subtask=subtask),
    )
    sent = []
    stores = [job.subtasks[subtask][1]]
    answer(question, (deployment, sent.append), None, stores)
    (found,) = sent
    assert (found.error, found.request_id) == ("", "7")
    return found.answer


def rows_of(job, key, state):
    """Ask the first subtask, and the one that it names."""
    found = ask(job, key, state, subtask=0)
    owner = found["subtask"]
    assert key in job.owned(owner)
    assert ("rows" in found) == (owner == 0)
    return ask(job, key, state, subtask=owner)["rows"]


def check(job, key):
    model = job.model[key]
    pair = rows_of(job, key, "pair")
    assert [(row["n"], row["text"]) for row in pair] == ([] if model.pair is None else [model.pair])
    assert [row["value"] for row in rows_of(job, key, "numbers")] == model.numbers
    counts = rows_of(job, key, "counts")
    assert {row["__entry"]: row["n"] for row in counts} == model.counts
    assert len(counts) == len(model.counts)
    assert [row["__namespace"] for row in rows_of(job, key, "__timers_event")] == sorted(model.timers)


class Steps:
    """Rows, and questions between them."""

    def __init__(self, job):
        self.job = job

    def rows(self, rows):
        for subtask, mine in self.job.parts(rows):
            self.job.push(subtask, mine)
        for key, act, n in rows:
            self.job.model[key].act(act, n)

    def ask(self, key):
        check(self.job, key)


ROW = st.tuples(st.sampled_from(KEYS), st.sampled_from(["set", "set", "drop", "clear"]), st.integers(0, 40))
OPERATIONS = operations(
    step("rows", st.lists(ROW, min_size=1, max_size=12), times=3), step("ask", st.sampled_from(KEYS), times=2), most=25
)


@on((MEMORY, 100))
def test_a_key_is_shown_as_its_function_would_see_it(backend):
    backend.check(run, history=OPERATIONS)


def run(backend, history):
    with function_job(Keeps(), SCHEMA, {key: Model() for key in KEYS}, backend) as job:
        play(history, Steps(job), job)
        for key in KEYS:
            check(job, key)
        rows_by_state = {
            "pair": lambda model: model.pair is not None,
            "numbers": lambda model: len(model.numbers),
            "counts": lambda model: len(model.counts),
            "__timers_event": lambda model: len(model.timers),
        }
        for state, rows in rows_by_state.items():
            expected = {key: int(rows(model)) for key, model in job.model.items() if rows(model)}
            assert keys_with_rows(job, state) == expected, state
