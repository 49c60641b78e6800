"""Verdicts of `penstock check` on changed aggregates, as in docs/how-to/evolve-state.md."""

import dataclasses
from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.graph.test_state_check import job, keyed, people, snapshot

from penstock.core.evolution import evolve_state
from penstock.core.schema import schema_to_text
from penstock.graph.state_check import check_states
from penstock.operators.aggregates.aggregate_plan import AggregatePlan
from penstock.operators.aggregates.aggregate_schema import parse

SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        pa.field("x", pa.int32(), nullable=False),
        pa.field("v", pa.int64()),
        pa.field("s", pa.string()),
        pa.field("__ts", pa.int64(), nullable=False),
    ]
)
COUNT = ("count", None)


def spec(*aggregates, schema=SCHEMA, key="k", size=10_000_000, **more):
    named = [{"fn": fn, "column": column, "alias": f"a{i}"} for i, (fn, column) in enumerate(aggregates)]
    config = {"key": [key], "window": {"kind": "tumbling", "size_us": size}, "aggregates": named}
    return dataclasses.replace(AggregatePlan(parse(config), schema).spec, **more)


def verdict(before, after):
    old, new = (schema_to_text(one.segment_schema) for one in (before, after))
    (found,) = (
        v for v in check_states(job(people(panes=new)), snapshot(keyed("people", "panes", old))) if v.state == "panes"
    )
    return found.verdict, found.reason + found.way_out


def with_type(name, kind, *, nullable):
    return SCHEMA.set(SCHEMA.get_field_index(name), pa.field(name, kind, nullable=nullable))


WIDER, FLOATS = (with_type("x", kind, nullable=False) for kind in (pa.int64(), pa.float64()))
NULLABLE, NEVER_NULL = with_type("x", pa.int32(), nullable=True), with_type("v", pa.int64(), nullable=False)
BASE = spec(COUNT, ("sum", "x"))
CASES = {
    "renamed and in another order": (BASE, spec(("sum", "x"), COUNT), "same", ""),
    "of what is there already": (BASE, spec(("sum", "x"), ("mean", "x")), "same", ""),
    "of a wider integer": (BASE, spec(COUNT, ("sum", "x"), schema=WIDER), "same", ""),
    "dropped": (BASE, spec(COUNT), "migrates", "drops sum_x"),
    "a sum added": (spec(COUNT), BASE, "migrates", "adds sum_x, from rows after the restore"),
    "a variance added": (BASE, spec(("sum", "x"), ("var", "x")), "migrates", "adds moments_x"),
    "a mean of what may be null added": (BASE, spec(("sum", "x"), ("mean", "v")), "migrates", "adds sum_v, from"),
    "the least of what may be null added": (BASE, spec(("sum", "x"), ("min", "v")), "migrates", "adds min_v, from"),
    "the first string added": (BASE, spec(("sum", "x"), ("first", "s")), "migrates", "adds first_s, from"),
    "a sketch added": (BASE, spec(("sum", "x"), ("approx_count_distinct", "s")), "migrates", "adds registers_s, from"),
    "all others": (BASE, spec(("var", "v")), "migrates", "adds moments_v, from rows after the restore; drops sum_x"),
    "the least of what is never null added": (BASE, spec(("sum", "x"), ("min", "x")), "blocked", "where(pl.lit(True))"),
    "a mean of what is never null added": (spec(COUNT), spec(("mean", "x")), "blocked", "where(pl.lit(True))"),
    "a sum beside a count of before": (spec(("count", "v")), spec(("count", "v"), ("sum", "v")), "blocked", "added"),
    "may be null now": (BASE, spec(("sum", "x"), schema=NULLABLE), "blocked", "now can"),
    "may not be null any more": (
        spec(("min", "v")), spec(("min", "v"), schema=NEVER_NULL), "blocked", "no longer",
    ),
    "of floats now": (
        BASE, spec(("sum", "x"), schema=FLOATS), "blocked", "cannot hold all",
    ),
    "another window": (BASE, spec(("sum", "x"), size=20_000_000), "blocked", "size 10 s, the job has size 20 s"),
    "another key": (BASE, spec(COUNT, ("sum", "x"), key="s"), "blocked", "keyed by (k int64)"),
    "a time-to-live": (BASE, spec(COUNT, ("sum", "x"), expires=True), "blocked", "time-to-live"),
}  # fmt: skip

#: Changes as the page lists them.
LISTED = {
    "an output column is renamed, or the order is another": ["renamed and in another order"],
    "an aggregate of what is kept already is added": ["of what is there already"],
    "the integers of a column are widened": ["of a wider integer"],
    "an aggregate is dropped": ["dropped", "all others"],
    "an aggregate of a column that may be null, or of strings, is added": [
        "a mean of what may be null added",
        "the least of what may be null added",
        "the first string added",
    ],
    "`sum`, `var`, `std` or `approx_count_distinct` is added": ["a sum added", "a variance added", "a sketch added"],
    "`min`, `max`, `first`, `last`, `mean` of a column that is never null is added": [
        "the least of what is never null added",
        "a mean of what is never null added",
    ],
    "an aggregate is added beside another of the same column that may be null": ["a sum beside a count of before"],
    "a column may be null now, or no longer may": ["may be null now", "may not be null any more"],
    "a column of integers becomes one of floats": ["of floats now"],
    "the window's size, slide, offset, step or time zone changes": ["another window"],
    "the key changes, or a time-to-live comes or goes": ["another key", "a time-to-live"],
}


def test_the_page_lists_these_changes():
    text = (Path(__file__).parents[3] / "docs" / "how-to" / "evolve-state.md").read_text(encoding="utf-8")
    lines = text.split("## Aggregates of windows and keys\n", 1)[1].split("\n##", 1)[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    table = {row[0]: row[1].strip("`") for row in cells[2:]}
    assert table == {change: CASES[cases[0]][2] for change, cases in LISTED.items()}
    assert all(CASES[case][2] == table[change] for change, cases in LISTED.items() for case in cases)
    assert sorted(case for cases in LISTED.values() for case in cases) == sorted(CASES)


@pytest.mark.parametrize("name", sorted(CASES))
def test_verdicts(name):
    before, after, wanted, says = CASES[name]
    found, reason = verdict(before, after)
    assert (found, says in reason) == (wanted, True), reason


def test_what_began_late_is_not_divided_by_all_rows():
    """Three versions: a count, a sum beside it, then a mean, which would divide a late sum by the count of all rows."""
    first, second = spec(COUNT), BASE
    found = evolve_state(first.segment_schema, second.segment_schema)
    second = dataclasses.replace(second, evolution=found)
    assert verdict(second, spec(COUNT, ("sum", "x")))[0] == "same"
    blocked, reason = verdict(second, spec(COUNT, ("mean", "x")))
    assert (blocked, "do not cover all rows" in reason) == ("blocked", True)


def test_a_column_that_comes_back_begins_anew():
    """Files of before it was dropped still hold the old one, under another field id."""
    schemas = [BASE.segment_schema]
    for after in (spec(COUNT), BASE):
        found = evolve_state(schemas[-1], after.segment_schema)
        made = dataclasses.replace(after, evolution=found)
        schemas.append(made.segment_schema)
    ids = [int(schema.field("sum_x").metadata[b"id"]) for schema in (schemas[0], schemas[2])]
    assert ids[0] < ids[1]
