"""Row schemas: what a user may write and which Arrow type it becomes."""

import dataclasses
import datetime as dt
from decimal import Decimal
from typing import Annotated, NamedTuple

import pyarrow as pa
import pydantic
import pytest

from penstock.core.errors import GraphError, UsageError
from penstock.core.schema import Precision, Schema, arrow_schema_of, schema_from_text, schema_to_text


class Everything(Schema):
    """One field of each kind."""

    a: int
    b: float
    c: bool
    d: str
    e: bytes
    f: dt.datetime
    g: dt.date
    h: Annotated[Decimal, Precision(18, 2)]
    i: list[int]
    j: int | None


def test_every_supported_type_has_its_arrow_type() -> None:
    types = {field.name: (field.type, field.nullable) for field in Everything.arrow_schema()}
    assert types == {
        "a": (pa.int64(), False),
        "b": (pa.float64(), False),
        "c": (pa.bool_(), False),
        "d": (pa.string(), False),
        "e": (pa.binary(), False),
        "f": (pa.timestamp("us", tz="UTC"), False),
        "g": (pa.date32(), False),
        "h": (pa.decimal128(18, 2), False),
        "i": (pa.list_(pa.field("item", pa.int64(), nullable=False)), False),
        "j": (pa.int64(), True),
    }


def test_schema_survives_its_text_form() -> None:
    schema = Everything.arrow_schema()
    assert schema_from_text(schema_to_text(schema)).equals(schema)


def test_dataclasses_and_named_tuples_are_row_types() -> None:
    @dataclasses.dataclass
    class Point:
        x: float
        y: float | None

    class Pair(NamedTuple):
        left: int
        right: str

    assert arrow_schema_of(Point).names == ["x", "y"]
    assert arrow_schema_of(Point).field("y").nullable
    assert arrow_schema_of(Pair).types == [pa.int64(), pa.string()]


def test_a_type_without_arrow_type_names_its_field() -> None:
    class Wrong(Schema):
        fine: int
        odd: complex

        model_config = {"arbitrary_types_allowed": True}

    with pytest.raises(GraphError, match=r"Wrong\.odd: .* has no Arrow type"):
        Wrong.arrow_schema()


def test_a_decimal_without_precision_is_refused_with_the_way_out() -> None:
    class Price(Schema):
        price: Decimal

    with pytest.raises(GraphError, match=r"Precision\(18, 2\)"):
        Price.arrow_schema()


class Share(Schema):
    share: int
    of: str | None = None


def test_a_name_that_is_no_column_is_refused_with_the_columns() -> None:
    with pytest.raises(UsageError) as raised:
        Share(share=1, offf="x")
    assert str(raised.value) == "Share has no column 'offf' (did you mean 'of'? there are: share, of)"
    with pytest.raises(pydantic.ValidationError, match="share"):
        Share(offf="x")
    assert Share(share=1) == Share.model_validate({"share": 1})
