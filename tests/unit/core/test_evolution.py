"""Every change of a value's columns with its verdict, as docs/how-to/evolve-state.md lists them, and its rows."""

import re
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.core.errors import StateMismatchError
from penstock.core.evolution import DEFAULT, WAS, conform_table, default_text, evolve
from penstock.state.log.row_spec import RowSpec

KEY = pa.schema([pa.field("k", pa.int64())])
INT, TEXT = pa.int64(), pa.string()


def field(name, kind=INT, *, default=None, was=None, null=False):
    more = {}
    if default is not None:
        more[DEFAULT] = default_text(default, kind)
    if was is not None:
        more[WAS] = was.encode()
    return pa.field(name, kind, null, more)


def schema(*fields, key=KEY):
    return RowSpec(key, fields, evolves=True).segment_schema


A, B = field("a"), field("b")
#: change: (saved, wanted, what is said, ids)
MIGRATES = {
    "a field with a default is added": ([A], [A, field("b", default=7)], ["adds b = 7"], (1001, 1002)),
    "a field that may be None is added": ([A], [A, field("b", TEXT, null=True)], ["adds b = None"], (1001, 1002)),
    "a field is dropped": ([A, B], [B], ["drops a"], (1002,)),
    "an integer, float or decimal is widened": (
        [field("a", pa.int32()), field("b", pa.float32()), field("c", pa.decimal128(5, 2))],
        [A, field("b", pa.float64()), field("c", pa.decimal128(9, 2))],
        [
            "widens a from int32 to int64",
            "widens b from float to double",
            "widens c from decimal128(5, 2) to decimal128(9, 2)",
        ],
        (1001, 1002, 1003),
    ),
    "a field is renamed, and says so": ([A, B], [field("c", was="a"), B], ["renames a to c"], (1001, 1002)),
    "a field may be None now": ([A], [field("a", null=True)], [], (1001,)),
    "a field may not be None any more, and has a default": (
        [field("a", null=True)], [field("a", default=3)], ["a: None becomes 3"], (1001,),
    ),
    "fields change places": ([A, B], [B, A], [], (1002, 1001)),
    "a default is changed or taken away": ([field("a", default=1)], [field("a", default=2)], [], (1001,)),
}  # fmt: skip
BLOCKED = {
    "a field without a default is added": ([A], [A, B], "b .* was added without a default"),
    "a field is renamed, and a new one has its old name": (
        [A],
        [field("b", default=0, was="a"), field("a", default=0)],
        "b was a, and the job has a new field a",
    ),
    "a field is narrowed or of another type": ([A], [field("a", pa.int32())], "a was int64 and is int32, which cannot"),
    "a field may not be None any more, without a default": ([field("a", null=True)], [A], "a could be None"),
    "the key changes": (schema(A, key=pa.schema([pa.field("k", TEXT)])), [A], r"the key was \(k string\)"),
}


def as_schema(given):
    return given if isinstance(given, pa.Schema) else schema(*given)


@pytest.mark.parametrize("change", MIGRATES)
def test_what_migrates(change):
    saved, wanted, changes, ids = MIGRATES[change]
    found = evolve(schema(*saved), schema(*wanted))
    assert (list(found.changes), found.ids) == (changes, ids)


@pytest.mark.parametrize("change", BLOCKED)
def test_what_is_blocked(change):
    saved, wanted, error = BLOCKED[change]
    with pytest.raises(StateMismatchError, match=error):
        evolve(as_schema(saved), schema(*wanted))


@pytest.mark.parametrize(("kind", "example"), [("string", '""'), ("bool", "False"), ("float64", "0"), ("int64", "0")])
def test_the_example_of_a_default_has_the_type_of_the_field(kind, example):
    with pytest.raises(StateMismatchError, match=re.escape(f"give it one: b: ... = {example}, or")):
        evolve(schema(A), schema(A, field("b", pa.type_for_alias(kind))))


@pytest.mark.parametrize("pair", ["int64 float64", "float64 float32", "int64 string", "uint64 int64", "string binary"])
def test_what_does_not_hold_every_value_is_no_widening(pair):
    old, new = map(pa.type_for_alias, pair.split())
    with pytest.raises(StateMismatchError, match="cannot hold all its values"):
        evolve(schema(field("a", old)), schema(field("a", new)))


def fitted(spec, saved):
    evolution = evolve(saved, spec.segment_schema)
    return RowSpec(spec.key_schema, spec.values, evolves=True, evolution=evolution).segment_schema


def test_a_name_that_comes_back_does_not_bring_the_old_values_back():
    first = schema(A, B)
    second = fitted(RowSpec(KEY, (A,), evolves=True), first)
    third = fitted(RowSpec(KEY, (A, field("b", default=9)), evolves=True), second)
    assert third.field("b").metadata[b"id"] == b"1003"
    old = pa.table({f.name: pa.array([1]).cast(f.type) for f in first}, schema=first)
    assert conform_table(old, third).column("b").to_pylist() == [9]


def test_rows_of_an_older_file_have_todays_columns():
    wanted = (field("n", was="a"), field("c", pa.float64()), field("d", TEXT, default="x"), field("e", null=True))
    saved = schema(A, field("c", pa.float32()), field("gone", TEXT))
    today = fitted(RowSpec(KEY, wanted, evolves=True), saved)
    values = {
        "__key_hash": [5], "k": [1], "__namespace": [0], "a": [2], "c": [1.5], "gone": ["y"], "__deleted": [False],
        "__seq": [0],
    }  # fmt: skip
    table = pa.table({f.name: pa.array(values[f.name], f.type) for f in saved}, schema=saved)
    (row,) = conform_table(table, today).to_pylist()
    assert {name: row[name] for name in ("k", "n", "c", "d", "e")} == {"k": 1, "n": 2, "c": 1.5, "d": "x", "e": None}
    assert conform_table(table, saved) is not None
    assert conform_table(conform_table(table, today), today).schema.equals(today, check_metadata=True)


def file_of(columns, **values):
    """Return a file of one row; what is not given is null."""
    held = {"__key_hash": 5, "k": 1, "__namespace": 0, "__deleted": False, "__seq": 0, **values}
    return pa.table({f.name: pa.array([held.get(f.name)], f.type) for f in columns}, schema=columns)


def versions(*fields):
    """Return the columns of every version of a value."""
    found = [schema(*fields[0])]
    for wanted in fields[1:]:
        found.append(fitted(RowSpec(KEY, wanted, evolves=True), found[-1]))
    return found


def value(table, columns):
    return conform_table(table, columns).column("x").to_pylist()[0]


MAYBE = field("x", null=True)


def test_none_becomes_the_default_when_nothing_else_changes():
    first, second = versions([MAYBE], [field("x", default=7)])
    assert value(file_of(first, x=None), second) == 7
    assert value(file_of(first, x=3), second) == 3


def test_what_none_has_become_it_stays_whatever_the_default_is_later():
    first, *_, last = versions([MAYBE], [field("x", default=7)], [field("x", default=9)], [field("x")])
    assert value(file_of(first, x=None), last) == 7


def test_none_of_a_file_means_what_it_meant_when_the_file_was_written():
    columns = versions([MAYBE], [field("x", default=7)], [MAYBE], [field("x", default=8)])
    first, _, third, _ = columns
    files = file_of(first, x=None), file_of(third, x=None)
    assert [value(files[0], each) for each in columns] == [None, 7, 7, 7]
    assert [value(files[1], each) for each in columns[2:]] == [None, 8]
    assert value(conform_table(files[0], third), columns[3]) == 7


def test_the_default_that_counts_is_the_one_with_which_the_field_was_added():
    added = field("x", default=1)
    columns = versions([A], [A, added], [A, field("x", default=2)], [A, field("x")])
    assert [value(file_of(columns[0], a=0), each) for each in columns[1:]] == [1, 1, 1]
    columns = versions([A], [A, MAYBE], [A, field("x", default=2, null=True)], [A, field("x", default=3, null=True)])
    assert [value(file_of(columns[0], a=0), each) for each in columns[1:]] == [None, None, None]


def test_a_value_that_is_widened_after_it_was_added_keeps_its_first_default():
    small = field("x", pa.int32(), default=1)
    first, _, last = versions([A], [A, small], [A, field("x", pa.int64(), default=1)])
    found = conform_table(file_of(first, a=0), last).column("x")
    assert (found.type, found.to_pylist()) == (pa.int64(), [1])


def test_the_old_name_is_free_in_the_version_after_the_rename():
    renamed = field("b", was="a")
    first, _, last = versions([A], [renamed], [renamed, field("a", default=9)])
    assert conform_table(file_of(first, a=4), last).select(["b", "a"]).to_pylist() == [{"b": 4, "a": 9}]


def test_the_page_lists_these_changes():
    text = (Path(__file__).parents[3] / "docs" / "how-to" / "evolve-state.md").read_text(encoding="utf-8")
    part = text.split("## Fields of a state\n", 1)[1].split("\n## ", 1)[0]
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in part.splitlines() if line.startswith("|")]
    table = {row[1]: row[2] for row in cells[2:] if row[0] in ("value", "all by key")}
    for also in ("anything, and there is a function for it", "it gets or loses a time-to-live"):
        del table[also]  # those are not of the columns alone
    said = {change: "`migrates`" if case[2] else "`same`" for change, case in MIGRATES.items()}
    assert table == {**said, **dict.fromkeys(BLOCKED, "`blocked`")}
