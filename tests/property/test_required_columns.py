"""Filters and projections in a row: what they keep against Arrow's own filter, and columns nobody looks at left out."""

import numpy as np
import polars as pl
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st
from tests.unit.operators.conftest import Bench

from penstock.core.clock import ManualClock
from penstock.core.elements import TS_COLUMN, Batch
from penstock.core.errors import GraphError
from penstock.core.schema import schema_to_text
from penstock.graph.job_graph import OperatorSpec
from penstock.kernels.rows.row_filter import filter_rows
from penstock.operators.rows.columns import TS_FIELD
from penstock.operators.rows.project import ProjectOperator, output_schema_of, serialize_expressions

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("s", pa.string()), TS_FIELD])
ROW = st.tuples(st.integers(-5, 5), st.none() | st.integers(-5, 5), st.none() | st.text("xyz", max_size=2))
WIDE = {
    "i": pa.int64(),
    "u": pa.uint64(),
    "f": pa.float64(),
    "t": pa.timestamp("us", tz="UTC"),
    "narrow": pa.int32(),
    "s": pa.string(),
    "truth": pa.bool_(),
    "list": pa.list_(pa.int64()),
}
#: Runs of one answer, so that whole groups of eight rows are kept or dropped.
MASK = st.lists(st.tuples(st.booleans(), st.sampled_from([1, 2, 7, 8, 9, 16, 31])), max_size=12).map(
    lambda runs: [answer for answer, length in runs for _ in range(length)]
)


def column(name, kind, rows, every):
    values = [None if every and i % every == 0 else i * 3 - 7 for i in range(rows)]
    if name in ("u", "t"):
        values = [None if v is None else v + 7 for v in values]
    made = {"s": str, "f": float, "truth": lambda v: v % 2 == 0, "list": lambda v: [v, v]}.get(name, int)
    return pa.array([None if v is None else made(v) for v in values], kind)


@given(MASK, st.integers(0, 9), st.integers(0, 3), st.sampled_from([0, 1, 3]))
@example([True] * 8 + [False] * 8 + [True, False] * 4, 0, 0, 0)
@example([False], 3, 1, 3)
@example([], 0, 0, 0)
def test_the_rows_kept_are_those_arrow_keeps(mask, before, behind, every):
    rows = len(mask)
    whole = pa.record_batch({n: column(n, kind, before + rows + behind, every) for n, kind in WIDE.items()})
    batch = whole.slice(before, rows)
    kept = filter_rows(batch, np.array(mask, np.bool_))
    kept.validate(full=True)
    assert kept.equals(batch.filter(pa.array(mask, pa.bool_())))


INTEGERS = st.sampled_from(["a", "b"]).map(pl.col)
CONDITIONS = st.one_of(
    st.builds(lambda x, n: x % 3 != n, INTEGERS, st.integers(0, 2)),
    st.builds(lambda x, y: x >= y, INTEGERS, INTEGERS),
    st.just(pl.col("s").is_not_null()),
    st.just(pl.lit(value=True)),
)
COMPUTED = st.one_of(
    st.builds(lambda x, n: x * 2 + n, INTEGERS, st.integers(-3, 3)),
    st.just(pl.col("s").str.to_uppercase()),
    st.just(pl.lit(7)),
    INTEGERS,
    st.just(pl.col("s")),
)
NAMES = st.sampled_from(["a", "b", "c", "d"])


@st.composite
def steps(draw):
    """Modes with their expressions, each of which fits what the one before leaves."""
    made, schema = [], SCHEMA
    for mode in draw(st.lists(st.sampled_from(["filter", "select", "with_columns"]), min_size=1, max_size=5)):
        if mode == "filter":
            expressions = [draw(CONDITIONS)]
        else:
            named = draw(st.dictionaries(NAMES, COMPUTED, min_size=1, max_size=3))
            expressions = [expression.alias(name) for name, expression in named.items()]
            if mode == "select":
                expressions += [pl.col(n) for n in draw(st.sets(st.sampled_from(["a", "b", "s"]))) if n not in named]
        try:
            output = output_schema_of(mode, expressions, schema)
        except GraphError:  # a column that an earlier step has left out or made a text
            continue
        made.append((mode, expressions, schema, output))
        schema = output
    return made


class Next:
    """Hands batches to the next operator; the last one keeps them."""

    def __init__(self, operators):
        self.operators, self.rows, self.names = operators, [], None

    def batch(self, batch):
        batch.data.validate(full=True)
        if self.operators:
            after = Next(self.operators[1:])
            self.operators[0].process_batch(batch, 0, after)
            self.rows += after.rows
            self.names = after.names
        else:
            self.rows += batch.data.to_pylist()
            self.names = batch.data.schema.names


def opened(made):
    operators = []
    for mode, expressions, schema, output in made:
        payload, text = serialize_expressions(expressions), schema_to_text(output)
        spec = OperatorSpec(
            uid="p", name="p", kind="project", config={"mode": mode}, payload=payload, output_schema=text
        )
        operators.append(ProjectOperator())
        operators[-1].open(Bench(clock=ManualClock()).context(spec, schema))
    return operators


@given(steps(), st.lists(ROW, min_size=1, max_size=30), st.data())
def test_columns_that_nobody_looks_at_do_not_change_the_others(made, rows, data):
    a, b, s = zip(*rows, strict=True)
    times = pa.array(range(len(rows)), pa.int64())
    batch = pa.record_batch([pa.array(a, pa.int64()), pa.array(b, pa.int64()), pa.array(s), times], schema=SCHEMA)
    names = made[-1][3].names if made else SCHEMA.names
    behind = frozenset(data.draw(st.sets(st.sampled_from(names), min_size=1)))
    whole, narrow = Next(opened(made)), Next(opened(made))
    wanted = behind
    for operator in reversed(narrow.operators):
        wanted = operator.required_columns(wanted)
    given_in = batch if wanted is None else batch.select([name for name in SCHEMA.names if name in wanted])
    whole.batch(Batch(batch))
    narrow.batch(Batch(given_in if given_in.num_columns else batch))
    assert [{name: row[name] for name in behind} for row in narrow.rows] == [
        {name: row[name] for name in behind} for row in whole.rows
    ]
    if made and made[-1][0] == "filter" and narrow.names:
        assert set(narrow.names) == behind


def test_a_filter_hands_on_no_time_that_no_one_looks_at():
    made = [
        ("filter", [pl.col("a") > 0], SCHEMA, SCHEMA),
        ("select", [pl.col("s")], SCHEMA, output_schema_of("select", [pl.col("s")], SCHEMA)),
    ]
    keeps, takes = opened(made)
    assert takes.required_columns(frozenset({"s"})) == {"s"}
    assert keeps.required_columns(frozenset({"s"})) == {"a", "s"}


def test_a_select_looks_at_its_own_columns_whoever_is_behind():
    made = [("select", [pl.col("s")], SCHEMA, output_schema_of("select", [pl.col("s")], SCHEMA))]
    (takes,) = opened(made)
    assert takes.required_columns(None) == {"s", TS_COLUMN}
