"""Integer expressions computed in NumPy against Polars' own answers."""

import operator
from decimal import Decimal

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.operators.rows.integer_expressions import compile_integers, to_arrow

LOW, HIGH = -(1 << 63), (1 << 63) - 1
NAMES = ("a", "b")
SCHEMA = pa.schema([*(pa.field(name, pa.int64()) for name in NAMES), pa.field("s", pa.string())])
#: Few small ones, so that sums and products overflow and remainders of every sign occur.
NUMBERS = st.one_of(st.integers(-20, 20), st.sampled_from([LOW, LOW + 1, HIGH, HIGH - 1]), st.integers(LOW, HIGH))
LITERALS = st.one_of(st.integers(-20, 20), st.sampled_from([LOW, HIGH]), st.integers(LOW, HIGH))
DIVISORS = st.one_of(st.integers(1, 20), st.sampled_from([1 << 31, 1 << 62, HIGH]), st.integers(1, HIGH))
ARITHMETIC = (operator.add, operator.sub, operator.mul)
COMPARISONS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)


def column(name):
    return pl.col(name)


def typed(number):
    return pl.lit(number, dtype=pl.Int64)


def arithmetic(inner):
    literal = LITERALS.map(typed)
    return st.one_of(
        st.builds(lambda f, x, y: f(x, y), st.sampled_from(ARITHMETIC), inner, st.one_of(inner, literal)),
        st.builds(lambda f, x, y: f(x, y), st.sampled_from(ARITHMETIC), literal, inner),
        st.builds(lambda x, d: x // typed(d), inner, DIVISORS),
        st.builds(lambda x, d: x % typed(d), inner, DIVISORS),
    )


INTEGERS = st.recursive(st.sampled_from(NAMES).map(column), arithmetic, max_leaves=5)
CONDITIONS = st.recursive(
    st.builds(
        lambda f, x, y: f(x, y), st.sampled_from(COMPARISONS), INTEGERS, st.one_of(INTEGERS, LITERALS.map(typed))
    ),
    lambda inner: st.one_of(
        st.builds(operator.and_, inner, inner), st.builds(operator.or_, inner, inner), st.builds(operator.inv, inner)
    ),
    max_leaves=4,
)
ROWS = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=20)


def batch_of(rows):
    a, b = zip(*rows, strict=True)
    return pa.record_batch([pa.array(a, pa.int64()), pa.array(b, pa.int64()), pa.array(["x"] * len(a))], schema=SCHEMA)


def polars(batch, expression):
    return pl.DataFrame(pl.from_arrow(batch)).select(expression).to_series().to_list()


@given(st.one_of(INTEGERS, CONDITIONS), ROWS)
@example(pl.col("a") % 7, [(-8, 0), (LOW, 0), (HIGH, 0)])
@example(pl.col("a") % 4 != 0, [(-7, 0), (8, 0)])
@example((pl.col("a") * 908 // 1000).alias("net"), [(HIGH, 0), (-1, 0)])
def test_the_answers_are_those_of_polars(expression, rows):
    batch = batch_of(rows)
    compiled = compile_integers([expression], SCHEMA)
    assert compiled is not None
    (values,) = compiled.of(batch)
    assert to_arrow(values).to_pylist() == polars(batch, expression)
    assert batch.equals(batch_of(rows)), "a step wrote over a column"


@given(
    st.builds(
        lambda numbers, factor, turned: factor * numbers if turned else numbers * factor,
        INTEGERS,
        st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**9), max_value=10**9)
        | st.sampled_from([Decimal("0.908"), Decimal(3), Decimal("1e-10"), Decimal("-2.50")]),
        st.booleans(),
    ),
    ROWS,
)
def test_integers_times_a_decimal_are_those_of_polars(expression, rows):
    batch = batch_of(rows)
    found = compile_integers([expression], SCHEMA).of(batch)
    wanted = pl.DataFrame(pl.from_arrow(batch)).select(expression).to_arrow().column(0)
    if found is None:  # a product of more than 64 bits
        assert max(abs(int(value.scaleb(wanted.type.scale))) for value in wanted.to_pylist()) > HIGH
        return
    assert to_arrow(found[0]).type == wanted.type
    assert to_arrow(found[0]).to_pylist() == wanted.to_pylist()


@given(INTEGERS, ROWS)
def test_rows_before_and_behind_a_slice_do_not_count(expression, rows):
    batch = batch_of([(1, 2), *rows, (3, 4)]).slice(1, len(rows))
    (values,) = compile_integers([expression], SCHEMA).of(batch)
    assert to_arrow(values).to_pylist() == polars(batch, expression)


def test_a_batch_with_nulls_is_left_to_polars():
    compiled = compile_integers([pl.col("a") + 1], SCHEMA)
    assert compiled.of(batch_of([(1, 1)])) is not None
    assert compiled.of(batch_of([(None, 1)])) is None
    assert compiled.of(batch_of([(1, None)])) is not None


@pytest.mark.parametrize(
    "expression",
    [
        pl.col("s") + "x",
        pl.col("a") / 2,
        pl.col("a") * 1.5,
        pl.col("a") + Decimal("1.5"),
        pl.col("a") * Decimal("1.5") + 1,
        pl.col("a") * Decimal(1 << 63),
        pl.col("a") // 0,
        pl.col("a") % 0,
        pl.col("a") // -3,
        pl.col("a") // pl.col("b"),
        pl.col("a") + (1 << 63),
        pl.col("a") + True,
        pl.lit(1) + pl.lit(2),
        (pl.lit(1) + pl.lit(2)) * pl.col("a"),
        pl.col("a").cast(pl.Int32) + 1,
        -pl.col("a"),
        (pl.col("a") > 1) == (pl.col("b") > 1),
        (pl.col("a") > 1) & pl.lit(value=True),
        pl.col("a").is_null(),
        pl.col("a") ^ pl.col("b"),
        pl.col("a").map_elements(str.__len__, return_dtype=pl.Int64),
        pl.when(pl.col("a") > 1).then(1).otherwise(2),
        pl.all(),
    ],
    ids=str,
)
def test_what_numpy_would_answer_otherwise_is_left_to_polars(expression):
    assert compile_integers([expression], SCHEMA) is None


def test_one_expression_for_polars_leaves_all_to_it():
    assert compile_integers([pl.col("a") + 1, pl.col("a") / 2], SCHEMA) is None
