"""Column operations: results, schemas, what is refused."""

import polars as pl
import pyarrow as pa
import pytest

from penstock.core.elements import Batch
from penstock.core.errors import GraphError, PenstockError
from penstock.core.schema import schema_to_text
from penstock.graph.job_graph import OperatorSpec
from penstock.operators.rows.columns import TS_FIELD, ColumnError
from penstock.operators.rows.project import ProjectOperator, output_schema_of, serialize_expressions

SCHEMA = pa.schema([pa.field("a", pa.int64(), nullable=False), pa.field("s", pa.string()), TS_FIELD])


def rows(*values):
    columns = list(zip(*values, strict=True)) if values else [[], [], []]
    return Batch(pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA))


def run(bench, out, mode, *expressions, batch=None, schema=SCHEMA):
    output = output_schema_of(mode, expressions, schema)
    spec = OperatorSpec(
        uid="p",
        name="p",
        kind="project",
        config={"mode": mode},
        payload=serialize_expressions(expressions),
        output_schema=schema_to_text(output),
    )
    operator = ProjectOperator()
    operator.open(bench.context(spec, schema))
    operator.process_batch(batch or rows((1, "x", 10), (2, None, 20)), 0, out)
    for element in out.elements:
        assert element.data.schema.equals(output)
    return out.rows


def test_select_renames_computes_and_keeps_event_time(bench, out):
    found = run(bench, out, "select", (pl.col("a") * 2).alias("b"), pl.col("s").str.to_uppercase())
    assert found == [{"b": 2, "s": "X", "__ts": 10}, {"b": 4, "s": None, "__ts": 20}]


def test_with_columns_replaces_in_place_and_appends(bench, out):
    found = run(bench, out, "with_columns", pl.col("a") + 1, pl.lit("k").alias("kind"))
    assert list(found[0]) == ["a", "s", "kind", "__ts"]
    assert found[1] == {"a": 3, "s": None, "kind": "k", "__ts": 20}


def test_literals_alone_have_the_batch_height(bench, out):
    assert run(bench, out, "select", pl.lit(7).alias("seven")) == [
        {"seven": 7, "__ts": 10},
        {"seven": 7, "__ts": 20},
    ]


def test_a_wildcard_means_the_rows_columns_without_event_time(bench, out):
    assert list(run(bench, out, "select", pl.all())[0]) == ["a", "s", "__ts"]


def test_a_plain_column_keeps_its_field(bench):
    schema = output_schema_of("select", [pl.col("a"), (pl.col("a") + 1).alias("b")], SCHEMA)
    assert schema.field("a") == SCHEMA.field("a")
    assert schema.field("b").nullable


def test_filter_keeps_rows_whose_condition_is_true(bench, out):
    assert run(bench, out, "filter", pl.col("a") > 1) == [{"a": 2, "s": None, "__ts": 20}]


def test_all_conditions_must_be_true(bench, out):
    batch = rows((1, "x", 10), (2, None, 20), (3, "x", 30), (-1, "y", 40))
    conditions = (pl.col("a") > 1, pl.col("s") == "x")
    assert [row["a"] for row in run(bench, out, "filter", *conditions, batch=batch)] == [3]
    assert run(bench, out, "filter", pl.lit(value=False), batch=batch) == run(bench, out, "filter", pl.col("a") > 9)


def test_a_literal_beside_a_column_has_the_batch_height(bench, out):
    found = run(bench, out, "select", pl.lit(7).alias("seven"), (pl.col("a") + pl.lit(1)).alias("next"))
    assert found == [{"seven": 7, "next": 2, "__ts": 10}, {"seven": 7, "next": 3, "__ts": 20}]


def test_null_is_not_true_and_nothing_left_emits_nothing(bench, out):
    assert run(bench, out, "filter", pl.col("s") == "never") == []
    assert out.elements == []


def test_a_filter_that_keeps_everything_copies_nothing(bench, out):
    batch = rows((1, "x", 10))
    run(bench, out, "filter", pl.col("a") > 0, batch=batch)
    assert out.elements[0].data is batch.data


def test_several_conditions_must_all_hold(bench, out):
    assert len(run(bench, out, "filter", pl.col("a") > 0, pl.col("s").is_not_null())) == 1


@pytest.mark.parametrize(
    ("mode", "expression", "message"),
    [
        ("select", pl.col("zz"), "zz"),
        ("select", pl.col("a").sum(), "more than its own row"),
        ("with_columns", pl.col("a").shift(1), "more than its own row"),
        ("filter", pl.col("a") + 1, "not Boolean"),
        ("with_columns", pl.lit(1).alias("__ts"), "reserved"),
        ("select", pl.col("__ts"), "__ts"),
    ],
)
def test_what_a_stream_cannot_mean_is_refused_when_the_job_is_built(mode, expression, message):
    with pytest.raises(GraphError, match=message):
        output_schema_of(mode, [expression], SCHEMA)


def test_a_value_that_does_not_fit_the_declared_type_is_named(bench, out):
    spec = OperatorSpec(
        uid="p",
        name="p",
        kind="project",
        config={"mode": "select"},
        payload=serialize_expressions([pl.col("s")]),
        output_schema=schema_to_text(pa.schema([pa.field("s", pa.string(), nullable=False), TS_FIELD])),
    )
    operator = ProjectOperator()
    operator.open(bench.context(spec, SCHEMA))
    with pytest.raises(ColumnError, match="select 'p': column 's' must not be null, but 1 of 1 rows are"):
        operator.process_batch(rows((2, None, 20)), 0, out)


class OtherError(PenstockError):
    def __init__(self, number):
        super().__init__(f"number {number}")


def test_an_error_of_its_own_class_keeps_it_and_gets_the_row(bench, out, monkeypatch):
    def refuse(*_):
        raise OtherError(7)

    monkeypatch.setattr("penstock.operators.rows.project.conform_array", refuse)
    with pytest.raises(OtherError, match="number 7") as raised:
        run(bench, out, "select", pl.col("a") + 1)
    assert raised.value.values == "row 1 of a batch of 2: a=1, s='x'"


def test_columns_that_are_only_taken_do_not_pass_through_polars(bench, out):
    data = rows((1, "a", 5), (2, "b", 6))
    run(bench, out, "select", pl.col("s").alias("text"), pl.col("a"), (pl.col("a") + 1).alias("more"), batch=data)
    (batch,) = out.elements
    assert batch.data.to_pylist() == [
        {"text": "a", "a": 1, "more": 2, "__ts": 5},
        {"text": "b", "a": 2, "more": 3, "__ts": 6},
    ]
    addresses = [array.buffers()[2].address for array in (batch.data.column("text"), data.data.column("s"))]
    assert addresses[0] == addresses[1]
