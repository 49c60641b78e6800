"""Registered migrations of lists and maps: each element and each value, once, whatever became of it before."""

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.property.harness.backends import MEMORY, leaving
from tests.property.harness.functions import function_job
from tests.support.depth import examples

import penstock as ps
from penstock.core.errors import GraphError, StateMismatchError
from penstock.core.schema import schema_from_text
from penstock.operators.rows.user_functions import UserFunctionError


class Out(NamedTuple):
    k: str
    shown: str


class Cents(NamedTuple):
    cents: int
    text: str | None


class Money(NamedTuple):
    euros: float
    text: str


def to_money(old: dict) -> Money | None:
    return None if old["cents"] % 5 == 0 else Money(old["cents"] / 100, f"{old['text']} ct")


def expected(cents):
    return to_money({"cents": cents, "text": str(cents)})


class First(ps.KeyedProcessFunction):
    """Rows (key, v): -1 and below clear, others are appended, and put under their last digit; 9 takes one out."""

    paid: ps.ListState[Cents] = ps.list_state()
    newest: ps.MapState[int, Cents] = ps.map_state()

    def process(self, row, ctx) -> Iterator[Out]:
        if row.v < 0:
            self.paid.clear()
            self.newest.clear()
        elif row.v % 10 == 9:
            self.newest.remove(row.v // 10)
        else:
            self.paid.append(Cents(row.v, str(row.v)))
            self.newest.put(row.v % 10, Cents(row.v, str(row.v)))
        return iter(())


class Second(ps.KeyedProcessFunction):
    """-1 shows what there is; others are appended and put."""

    paid: ps.ListState[Money] = ps.list_state(migrate=ps.migrate(to_money, was=Cents))
    newest: ps.MapState[int, Money] = ps.map_state(migrate=ps.migrate(to_money, was=Cents))

    def process(self, row, ctx) -> Iterator[Out]:
        if row.v == -1:
            yield Out(str(row.k), f"{list(self.paid)} {sorted(self.newest.items())}")
        else:
            self.paid.append(Money(float(row.v), "new"))
            self.newest.put(row.v, Money(float(row.v), "new"))


class Third(Second):
    paid: ps.ListState[Money] = ps.list_state()
    newest: ps.MapState[int, Money] = ps.map_state()


class Model:
    """A list and a dict."""

    def __init__(self, paid=(), newest=()):
        self.paid, self.newest = list(paid), dict(newest)

    def first(self, value):
        if value < 0:
            self.paid, self.newest = [], {}
        elif value % 10 == 9:
            self.newest.pop(value // 10, None)
        else:
            self.paid.append(value)
            self.newest[value % 10] = value

    def migrated(self):
        newest = {name: made for name, cents in self.newest.items() if (made := expected(cents)) is not None}
        return Model([made for cents in self.paid if (made := expected(cents)) is not None], newest)

    def second(self, value):
        self.paid.append(Money(float(value), "new"))
        self.newest[value] = Money(float(value), "new")

    def shown(self):
        return f"{self.paid} {sorted(self.newest.items())}"


SCHEMA = pa.schema([pa.field("k", pa.string()), pa.field("v", pa.int64())])
KEYS = [f"k{number}" for number in range(6)]


def run(backend, rows, data):
    models = {key: Model() for key in KEYS}
    with function_job(First(), SCHEMA, models, backend) as job:
        for key, value in rows:
            job.push(0, [(key, value)])
            job.model[key].first(value)
            if data.draw(st.integers(0, 3)) == 0:
                job.checkpoint()
        job.checkpoint()
        job.amend(lambda models: models.update({key: model.migrated() for key, model in models.items()}))
    for number, function in enumerate((Second, Second, Third)):  # by the migration, then what was saved after it
        files, complete = job.files, job.complete
        with function_job(function(), SCHEMA, models, backend) as job:
            job.files, job.complete = files, complete
            job.start(data.draw(st.integers(1, 3)))
            for subtask, mine in job.parts([(key, -1) for key in KEYS]):
                for key, _ in mine:
                    (row,) = job.push(subtask, [(key, -1)]).rows
                    assert row["shown"] == job.model[key].shown()
                    if data.draw(st.booleans()):
                        job.push(subtask, [(key, number)])
                        job.model[key].second(number)
            job.checkpoint()


@examples(15)
@given(rows=st.lists(st.tuples(st.sampled_from(KEYS), st.integers(-1, 60)), max_size=40), data=st.data())
def test_any_history_gives_what_its_entries_become(rows, data):
    run(MEMORY, rows, data)


@examples(15)
@given(rows=st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 60)), min_size=30, max_size=40), data=st.data())
def test_keys_that_leave_memory_while_they_are_restored_are_saved_too(rows, data):
    backend = leaving(2)
    with backend.in_force():
        run(backend, [*rows, *((key, 11) for key in KEYS)], data)


def shown(bench, *keys):
    return [row[1] for row in bench.rows(*((key, -1, key) for key in keys))]


def test_the_next_snapshot_holds_the_values_of_today_alone(world):
    first = world.open(First())
    first.rows((1, 251, 1), (2, 302, 2))
    first.snapshot(1)
    first.rows((2, -1, 3), (1, 253, 4))
    before = {segment.file.path for state in first.snapshot(2) for segment in state.segments}
    second = first.restored(Second())
    saved = {state.state: state for state in second.snapshot(2)}
    for name in ("paid", "newest"):
        names = schema_from_text(saved[name].schema).names
        assert ("cents" in names, "euros" in names) == (False, True)
        assert not {segment.file.path for segment in saved[name].segments} & before
    third = second.restored(Third())
    assert shown(third, 1, 2) == [
        Model([expected(251), expected(253)], {1: expected(251), 3: expected(253)}).shown(), "[] []",
    ]  # fmt: skip


class Short(First):
    paid: ps.ListState[Cents] = ps.list_state(ttl="1s")
    newest: ps.MapState[int, Cents] = ps.map_state(ttl="1s")


class ShortMoney(Second):
    paid: ps.ListState[Money] = ps.list_state(ttl="1s", migrate=ps.migrate(to_money, was=Cents))
    newest: ps.MapState[int, Money] = ps.map_state(ttl="1s", migrate=ps.migrate(to_money, was=Cents))


def test_the_times_of_last_access_are_kept(world):
    first = world.open(Short())
    first.rows((1, 251, 1))
    world.bench.clock.advance(600)
    first.rows((1, 302, 2))
    second = first.restored(ShortMoney())
    world.bench.clock.advance(600)
    left = Model([expected(302)], {2: expected(302)})
    assert shown(second, 1) == [left.shown()]
    assert shown(second.restored(ShortMoney()), 1) == [left.shown()]


def test_of_a_list_with_a_time_to_live_nothing_can_be_left_out(world):
    first = world.open(Short())
    first.rows((1, 250, 1))
    with pytest.raises(StateMismatchError, match="leaves out an element of a list with a time-to-live"):
        first.restored(ShortMoney())


def wrong(old: dict) -> Money:
    raise ValueError("no such thing")


class Fails(Second):
    newest: ps.MapState[int, Money] = ps.map_state(migrate=ps.migrate(wrong, was=Cents))


class Other(Second):
    paid: ps.ListState[Money] = ps.list_state(migrate=ps.migrate(to_money, was=tuple[int, int]))


def test_errors_name_the_state_and_what_is_wrong(world):
    first = world.open(First())
    first.rows((1, 251, 1))
    with pytest.raises(
        UserFunctionError, match=r"state 'newest': migration wrong: ValueError: no such thing at .*:\d+"
    ):
        first.restored(Fails())
    with pytest.raises(StateMismatchError, match=r"state 'paid' of .* was saved with columns"):
        first.restored(Other())

    class Bad(Second):
        paid: ps.ListState[Money] = ps.list_state(migrate=to_money)

    with pytest.raises(GraphError, match=r"is no migration"):
        world.open(Bad())
