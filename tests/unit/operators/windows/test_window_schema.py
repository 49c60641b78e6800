"""What the API is told about a window: output types, and what is refused."""

import pyarrow as pa
import pytest

from penstock.core.errors import GraphError
from penstock.operators.aggregates.aggregate_schema import output_schema, parse, validate

SCHEMA = pa.schema(
    [
        pa.field("user", pa.string(), nullable=False),
        pa.field("amount", pa.int32()),
        pa.field("price", pa.float32(), nullable=False),
        pa.field("at", pa.timestamp("ms"), nullable=False),
        pa.field("big", pa.uint64()),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("city", pa.dictionary(pa.int8(), pa.string())),
        pa.field("__ts", pa.int64(), nullable=False),
    ]
)
TUMBLING = {"kind": "tumbling", "size_us": 10}


def config(*aggregates, key=("user",), window=None, **more):
    named = [{"fn": fn, "column": column, "alias": f"a{i}"} for i, (fn, column) in enumerate(aggregates)]
    return {"key": list(key), "window": window or TUMBLING, "aggregates": named, **more}


def test_output_types():
    wanted = config(
        ("count", None), ("sum", "amount"), ("sum", "price"), ("mean", "price"), ("std", "price"), ("max", "at")
    )
    schema = output_schema(wanted, SCHEMA)
    assert schema.names == ["user", "window_start", "window_end", "a0", "a1", "a2", "a3", "a4", "a5", "__ts"]
    bounds = pa.timestamp("us", tz="UTC")
    kinds = [pa.string(), bounds, bounds, pa.int64(), pa.int64(), pa.float64(), pa.float64(), pa.float64()]
    assert schema.types == [*kinds, pa.timestamp("ms"), pa.int64()]
    assert [f.name for f in schema if f.nullable] == ["a1", "a4"]


def test_what_is_one_of_the_values_has_their_type():
    wanted = config(("min", "user"), ("first", "city"), ("last", "amount"))
    assert output_schema(wanted, SCHEMA).types[3:6] == [pa.string(), pa.string(), pa.int32()]


def test_dictionary_keys_come_out_as_their_values():
    assert output_schema(config(("count", None), key=["city"]), SCHEMA).field("city").type == pa.string()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (config(("sum", "amout")), "no column 'amout'.*did you mean 'amount'"),
        (config(("count", None), key=["usr"]), "no column 'usr'.*did you mean 'user'"),
        (config(("sum", "zzz")), "its columns are user, amount"),
        (config(("sum", "user")), r"sum\('user'\): type string is not supported"),
        (config(("min", "tags")), "no lists"),
        (config(("max", "big")), "cast the column to int64 or float64"),
        (config(("sum", "at")), "integers and floats"),
        (config(("sum", None)), "sum needs a column"),
        (config(("median", "amount")), "unknown aggregate 'median'.*count, sum"),
        (config(), "without aggregates"),
        (config(("count", None), key=[]), "needs a key"),
        (config(("count", None), key=["tags"]), "cannot be a key"),
        (config(("count", None), allowed_lateness_us=-1), "negative"),
        (config(("count", None), window={"kind": "spiral", "size_us": 1}), "unknown window kind 'spiral'"),
        (config(("count", None), window={"kind": "tumbling"}), "'size_us' is missing"),
        (config(("count", None), window={"kind": "tumbling", "size_us": 0}), "positive"),
        (config(("count", None), window={**TUMBLING, "offset_us": 10}), "offset"),
    ],
)
def test_what_is_refused(wrong, message):
    with pytest.raises(GraphError, match=message):
        validate(wrong, SCHEMA)


@pytest.mark.parametrize("name", ["window_start", "window_end", "user", "__ts"])
def test_names_taken(name):
    wanted = config(("count", None))
    wanted["aggregates"][0]["alias"] = name
    with pytest.raises(GraphError, match=f"'{name}' exists twice"):
        validate(wanted, SCHEMA)


def test_a_key_may_not_have_the_name_of_a_window_bound_but_another_column_may():
    """A window over windows has such columns."""
    schema = SCHEMA.append(pa.field("window_start", pa.timestamp("us", tz="UTC"), nullable=False))
    with pytest.raises(GraphError, match="name of an output column"):
        validate(config(("count", None), key=["window_start"]), schema)
    validate(config(("min", "window_start")), schema)


def test_event_time_is_needed():
    with pytest.raises(GraphError, match="needs event time"):
        validate(config(("count", None)), SCHEMA.remove(SCHEMA.get_field_index("__ts")))


def test_panes_are_what_windows_share():
    sliding = {"kind": "sliding", "size_us": 90, "slide_us": 60}
    assert parse(config(window=sliding)).pane == 30
