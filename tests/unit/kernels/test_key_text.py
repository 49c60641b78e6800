"""A key given as text is typed by its columns, or refused with what the columns are."""

import base64
import datetime as dt
import json
from decimal import Decimal

import pyarrow as pa
import pytest

from penstock.core.errors import UsageError
from penstock.kernels.keys.key_text import json_value, parse_key

TWO = pa.schema([pa.field("user", pa.int64()), pa.field("name", pa.string())])
NOON = dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)


def one(kind, text):
    return parse_key([text], pa.schema([pa.field("k", kind)])).column(0).to_pylist()[0]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (pa.int64(), "-7", -7),
        (pa.uint8(), "255", 255),
        (pa.float64(), "0.5", 0.5),
        (pa.bool_(), "TRUE", True),
        (pa.bool_(), "false", False),
        (pa.string(), "abc", "abc"),
        (pa.string(), "", ""),
        (pa.string(), "null", "null"),
        (pa.string(), "{x", "{x"),
        (pa.binary(), base64.b64encode(b"\x00\xff").decode(), b"\x00\xff"),
        (pa.decimal128(12, 2), "1.50", Decimal("1.50")),
        (pa.timestamp("us", tz="UTC"), "2024-02-29T12:00:00Z", NOON),
        (pa.timestamp("us", tz="UTC"), "2024-02-29T13:00:00+01:00", NOON),
        (pa.timestamp("us", tz="UTC"), "2024-02-29 12:00:00", NOON),
        (pa.timestamp("us", tz="UTC"), str(int(NOON.timestamp()) * 1_000_000), NOON),
        (pa.timestamp("us"), "2024-02-29T12:00:00", NOON.replace(tzinfo=None)),
        (pa.timestamp("us", tz="Europe/Berlin"), "2024-02-29T13:00:00", NOON),
        (pa.timestamp("us", tz="+01:00"), "2024-02-29T13:00:00", NOON),
        (pa.timestamp("us", tz="Europe/Berlin"), "2024-02-29T12:00:00Z", NOON),
        (pa.date32(), "2024-02-29", NOON.date()),
        (pa.date32(), "20240229", NOON.date()),
        (pa.int64(), "+7", 7),
        (pa.int64(), "[null]", None),
        (pa.string(), '["[1]"]', "[1]"),
        (pa.string(), '{"k": "x"}', "x"),
    ],
)
def test_one_column(kind, text, value):
    assert one(kind, text) == value


@pytest.mark.parametrize("texts", [["7", "x"], ['[7, "x"]'], ['{"name": "x", "user": 7}'], ['["7", "x"]']])
def test_several_columns(texts):
    assert parse_key(texts, TWO).to_pylist() == [{"user": 7, "name": "x"}]


def test_parts_may_be_null_as_json():
    assert parse_key(['[null, "x"]'], TWO).to_pylist() == [{"user": None, "name": "x"}]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["7"], "the key has 2 columns (user int64, name string), but 1 values are given"),
        (["7", "x", "y"], "but 3 values are given"),
        (["x", "7"], "key column user has type int64, and 'x' is no value of it"),
        (["[7, 8]"], "key column name has type string, and 8 is no value of it"),
        (['[true, "x"]'], "key column user has type int64, and True is no value of it"),
        (['[[1], "x"]'], "key column user has type int64, and [1] is no value of it"),
        (['{"user": 7, "nam": "x"}'], "the key has no column 'nam'"),
        (['{"user": 7}'], "the key has a column 'name', which is missing"),
        (["9223372036854775808", "x"], "key column user has type int64"),
    ],
)
def test_what_does_not_fit_is_refused(texts, message):
    with pytest.raises(UsageError) as raised:
        parse_key(texts, TWO)
    assert message in str(raised.value)
    assert raised.value.hint


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.bool_(), "yes"),
        (pa.float64(), "much"),
        (pa.binary(), "%"),
        (pa.decimal128(3, 1), "1.55"),
        (pa.timestamp("us", tz="UTC"), "noon"),
        (pa.date32(), "29.2."),
        (pa.date32(), "2026"),
        (pa.timestamp("us", tz="UTC"), "999999999999999999999"),
        (pa.timestamp("us", tz="UTC"), "9000000000000000000"),
        (pa.int64(), "1_000"),
        (pa.int64(), " 7"),
        (pa.int64(), "1.0"),
        (pa.int8(), "128"),
    ],
)
def test_what_is_no_value_of_its_column_is_refused(kind, text):
    with pytest.raises(UsageError, match="key column k has type"):
        one(kind, text)


def test_a_text_that_was_taken_for_json_is_told_how_to_be_written():
    with pytest.raises(UsageError) as raised:
        one(pa.string(), "[7]")
    assert '["[7]"]' in raised.value.hint


def test_values_are_json():
    values = {
        "a": float("nan"), "b": float("-inf"), "c": 1.5, "d": b"\xff", "e": NOON, "f": NOON.date(),
        "g": Decimal("1.50"), "h": None, "i": [NOON, {"j": b""}], "k": dt.timedelta(seconds=1), "l": 1 << 62,
    }  # fmt: skip
    assert json.loads(json.dumps({name: json_value(value) for name, value in values.items()}, allow_nan=False)) == {
        "a": "nan", "b": "-inf", "c": 1.5, "d": "/w==", "e": "2024-02-29T12:00:00+00:00", "f": "2024-02-29",
        "g": "1.50", "h": None, "i": ["2024-02-29T12:00:00+00:00", {"j": ""}], "k": 1_000_000, "l": 1 << 62,
    }  # fmt: skip
