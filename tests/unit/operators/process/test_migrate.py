"""Registered migrations: old values become those of today, once, and nothing of the old ones is left in a snapshot."""

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.property.harness.functions import function_job

import penstock as ps
from penstock.core.errors import StateMismatchError
from penstock.core.schema import schema_from_text
from penstock.operators.rows.user_functions import UserFunctionError


class Out(NamedTuple):
    k: str
    shown: str


class Cents(NamedTuple):
    cents: int
    text: str | None


class First(ps.KeyedProcessFunction):
    """Rows (key, v): None clears, else it is kept."""

    total: ps.ValueState[Cents] = ps.value_state()

    def process(self, row, ctx) -> Iterator[Out]:
        if row.v is None:
            self.total.clear()
        elif row.v >= 0:
            self.total.update(Cents(row.v, str(row.v)))
        return iter(())


class Money(NamedTuple):
    text: float
    euros: str


def to_money(old: dict) -> Money | None:
    if old["cents"] == 13:
        return None
    return Money(old["cents"] / 100, f"{old['text']} ct")


class Second(ps.KeyedProcessFunction):
    total: ps.ValueState[Money] = ps.value_state(migrate=ps.migrate(to_money, was=Cents))

    def process(self, row, ctx) -> Iterator[Out]:
        if row.v == -1:
            yield Out(str(row.k), str(self.total.value()))
        elif row.v is None:
            self.total.clear()


class Third(Second):
    total: ps.ValueState[Money] = ps.value_state()


def shown(bench, *keys):
    return [row[1] for row in bench.rows(*((key, -1, key) for key in keys))]


def test_values_are_mapped_and_those_that_were_cleared_stay_so(world):
    first = world.open(First())
    first.rows((1, 250, 1), (2, 300, 2), (3, 13, 3), (4, 4, 4))
    first.snapshot(1)
    first.rows((2, None, 5), (4, 5, 6))
    second = first.restored(Second())
    assert shown(second, 1, 2, 3, 4) == [
        "Money(text=2.5, euros='250 ct')", "None", "None", "Money(text=0.05, euros='5 ct')",
    ]  # fmt: skip


def test_no_later_checkpoint_is_added_to_migrated_values(world):
    first = world.open(First())
    first.rows((1, 250, 1))
    assert first.restored().world.stores[-1].advances
    assert not first.restored(Second()).world.stores[-1].advances


class Pair(NamedTuple):
    a: int
    b: int


class Turned(NamedTuple):
    b: int
    a: int


class Wider(NamedTuple):
    a: int
    b: int
    c: int = 7


def keeps(kept: type, **declared: object) -> ps.KeyedProcessFunction:
    """A function with values of the type; a row -1 shows the one it has."""

    class Keeps(ps.KeyedProcessFunction):
        total: ps.ValueState[kept] = ps.value_state(**declared)

        def process(self, row, ctx) -> Iterator[Out]:
            if row.v == -1:
                yield Out(str(row.k), str(self.total.value()))
            else:
                self.total.update(kept(row.v, 1000))

    return Keeps()


def to_text(old: dict) -> Money:
    return Money(0.0, repr(sorted(old.items())))


@pytest.mark.parametrize(
    ("between", "seen"), [(Turned, [("a", 5), ("b", 1000)]), (Wider, [("a", 5), ("b", 1000), ("c", 7)])]
)
def test_values_in_files_from_before_an_earlier_change_are_mapped_by_their_fields(world, between, seen):
    first = world.open(keeps(Pair))
    first.rows((1, 5, 1))
    second = first.restored(keeps(between))
    third = second.restored(keeps(Money, migrate=ps.migrate(to_text, was=between)))
    assert shown(third, 1) == [str(Money(0.0, repr(seen)))]


def test_the_next_snapshot_holds_the_values_of_today_alone(world):
    first = world.open(First())
    first.rows((1, 250, 1), (2, 300, 2))
    first.snapshot(1)
    first.rows((2, None, 3))
    (before,) = [s for s in first.snapshot(2) if s.state == "total"]
    second = first.restored(Second())
    (saved,) = [s for s in second.snapshot(2) if s.state == "total"]
    names = schema_from_text(saved.schema).names
    assert ("cents" in names, "euros" in names) == (False, True)
    old, new = ({segment.file.path for segment in state.segments} for state in (before, saved))
    assert len(saved.segments) == len(new) == 1, "all in one file"
    assert not new & old, "and it is none of the old ones"
    assert saved.segments[0].rows <= 2
    third = second.restored(Third())
    assert shown(third, 1, 2) == ["Money(text=2.5, euros='250 ct')", "None"]


def test_a_restart_before_the_next_snapshot_migrates_again_and_one_behind_it_does_not(world):
    first = world.open(First())
    first.rows((1, 250, 1))
    assert shown(first.restored(Second()), 1) == shown(first.restored(Second()), 1)
    second = first.restored(Second())
    second.rows((1, -1, 2))
    assert shown(second.restored(Second()), 1) == ["Money(text=2.5, euros='250 ct')"]


def test_each_subtask_of_another_parallelism_migrates_its_own_keys(world):
    first = world.open(First())
    first.rows(*((key, 100 * key, key) for key in range(20)))
    found = []
    for subtask in range(3):
        part = first.restored(Second(), 3, subtask)
        found += [value for value in shown(part, *range(20)) if value != "None"]
    assert sorted(found) == sorted(str(Money(float(key), f"{100 * key} ct")) for key in range(20))


def wrong(old: dict) -> Money:
    raise ValueError("no such thing")


class Fails(Second):
    total: ps.ValueState[Money] = ps.value_state(migrate=ps.migrate(wrong, was=Cents))


class Other(Second):
    total: ps.ValueState[Money] = ps.value_state(migrate=ps.migrate(to_money, was=tuple[int, int]))


def test_an_error_names_the_state_the_migration_and_the_line(world):
    first = world.open(First())
    first.rows((1, 250, 1))
    with pytest.raises(UserFunctionError, match=r"state 'total': migration wrong: ValueError: no such thing at .*:\d+"):
        first.restored(Fails())


def test_one_for_other_fields_is_not_used(world):
    first = world.open(First())
    first.rows((1, 250, 1))
    with pytest.raises(StateMismatchError, match="text was string and is double"):
        first.restored(Other())


class Spelled(NamedTuple):
    k: int


class Underscored(ps.KeyedProcessFunction):
    total: ps.ValueState[Spelled] = ps.value_state()

    def process(self, row, ctx) -> Iterator[Out]:
        self.total.update(Spelled(row.v))
        return iter(())


class Words(Second):
    total: ps.ValueState[str] = ps.value_state(migrate=ps.migrate(lambda old: f"was {old['k']}", was=Spelled), ttl=None)


def test_fields_with_the_name_of_a_key_column_and_plain_types(world):
    first = world.open(Underscored())
    first.rows((1, 7, 1))
    assert shown(first.restored(Words()), 1) == ["was 7"]


class Short(First):
    total: ps.ValueState[Cents] = ps.value_state(ttl="1s")


class ShortMoney(Second):
    total: ps.ValueState[Money] = ps.value_state(ttl="1s", migrate=ps.migrate(to_money, was=Cents))


def test_the_time_of_last_access_is_kept(world):
    first = world.open(Short())
    first.rows((1, 250, 1))
    world.bench.clock.advance(600)
    first.rows((2, 300, 2))
    second = first.restored(ShortMoney())
    world.bench.clock.advance(600)
    assert [value != "None" for value in shown(second, 1, 2)] == [False, True]


@given(st.lists(st.tuples(st.integers(0, 5), st.one_of(st.none(), st.integers(0, 20))), max_size=30), st.data())
def test_any_history_gives_what_its_newest_values_become(rows, data):
    schema = pa.schema([pa.field("k", pa.string()), pa.field("v", pa.int64())])
    model = {f"k{n}": Plain() for n in range(6)}
    with function_job(First(), schema, model) as job, function_job(Second(), schema, model) as second:
        for number, value in rows:
            job.push(0, [(f"k{number}", value)])
            job.model[f"k{number}"].value = value
            if data.draw(st.integers(0, 3)) == 0:
                job.checkpoint()
        job.checkpoint()
        second.files, second.complete = job.files, job.complete
        for _ in range(2):  # once by the migration, once from what was saved after it
            second.start(data.draw(st.integers(1, 3)))
            for subtask, mine in second.parts([(key, -1) for key in model]):
                found = {row["k"]: row["shown"] for row in second.push(subtask, mine).rows}
                for key, _ in mine:
                    value = second.model[key].value
                    new = None if value is None else to_money({"cents": value, "text": str(value)})
                    assert found[key] == str(new)
            second.checkpoint()


class Plain:
    value = None
