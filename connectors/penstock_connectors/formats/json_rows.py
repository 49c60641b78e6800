"""The exact JSON decoder, one payload at a time: it decides whether a payload is a row, and gives the error.

`json_decode` passes it the payloads that its compiled pass did not decide (unusual spellings, bad records) and all
payloads of schemas with nested, decimal, date or binary fields.
"""

from __future__ import annotations

import base64
import binascii
import decimal
import math
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa

from penstock.core.errors import GraphError
from penstock_connectors.formats.decoded import RowError
from penstock_connectors.formats.timestamps import TimestampUnit, days_of_text, micros_of_number, micros_of_text

#: Converts one JSON value for `pyarrow.array` and the field's type; raises RowError.
Convert = Callable[[Any], Any]

_UNIT_PER_MICRO = {"s": (1, 1_000_000), "ms": (1, 1_000), "us": (1, 1), "ns": (1_000, 1)}
_MISSING = object()


class JsonRowDecoder:
    """Decodes single payloads for one schema."""

    def __init__(self, schema: pa.Schema, timestamp_unit: TimestampUnit = "auto") -> None:
        """Prepare one converter per field.

        Raises:
            GraphError: a field's type cannot be read from JSON.
        """
        self.schema = schema
        self._fields = [(f.name, f.nullable, _converter(f.type, f.name, timestamp_unit)) for f in schema]
        hook = decimal.Decimal if any(_has_decimal(f.type) for f in schema) else None
        self._parse = msgspec.json.Decoder(float_hook=hook).decode

    def decode(self, payload: bytes | memoryview) -> list[Any]:
        """Return the values of one row, in schema order.

        Raises:
            RowError: the payload is not a row.
        """
        if len(payload) == 0:
            raise RowError("the payload is empty or null")
        try:
            value = self._parse(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RowError(f"not JSON: {error}") from error
        if type(value) is not dict:
            raise RowError(f"a JSON object was expected, not {_kind(value)}")
        row: list[Any] = []
        for name, nullable, convert in self._fields:
            item = value.get(name, _MISSING)
            if item is None or item is _MISSING:
                if not nullable:
                    how = "is missing" if item is _MISSING else "is null"
                    raise RowError(f"field {name!r} {how}, but the schema has no `{name}: ... | None`")
                row.append(None)
                continue
            try:
                row.append(convert(item))
            except RowError as error:
                raise RowError(f"field {name!r}: {error}") from error
        return row

    def columns(self, rows: list[list[Any]]) -> list[pa.Array]:
        """Return decoded rows as one array per field."""
        return [pa.array([row[i] for row in rows], type=field.type) for i, field in enumerate(self.schema)]


def _kind(value: Any) -> str:
    names = {
        type(None): "null",
        bool: "a boolean",
        int: "an integer",
        float: "a number",
        str: "a string",
        list: "an array",
    }
    return names.get(type(value), "an object" if type(value) is dict else "a number")


def _has_decimal(kind: pa.DataType) -> bool:
    if pa.types.is_decimal(kind):
        return True
    return any(_has_decimal(kind.field(i).type) for i in range(kind.num_fields))


def _converter(kind: pa.DataType, where: str, unit: TimestampUnit) -> Convert:
    if pa.types.is_integer(kind):
        return _integer(kind)
    if pa.types.is_float64(kind) or pa.types.is_float32(kind):
        return _floating
    if pa.types.is_boolean(kind):
        return _expect(bool, "a boolean")
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _expect(str, "a string")
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _binary
    if pa.types.is_timestamp(kind):
        return _timestamp(kind, unit)
    if pa.types.is_date32(kind):
        return _date
    if pa.types.is_decimal(kind):
        return _decimal(kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _list(kind, _converter(kind.value_type, f"{where}[]", unit))
    if pa.types.is_struct(kind):
        return _struct(kind, where, unit)
    raise GraphError(
        f"field {where!r} of type {kind} cannot be read from JSON",
        hint="use integers, floats, bool, string, binary, timestamp, date, decimal, list or struct; or format='raw'",
    )


def _expect(kind: type, name: str) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is not kind:
            raise RowError(f"{name} was expected, not {_kind(value)}")
        return value

    return convert


def _integer(kind: pa.DataType) -> Convert:
    signed = pa.types.is_signed_integer(kind)
    low, high = (
        (-(1 << kind.bit_width - 1), (1 << kind.bit_width - 1) - 1) if signed else (0, (1 << kind.bit_width) - 1)
    )

    def convert(value: Any) -> Any:
        if type(value) is not int:
            raise RowError(f"an integer was expected, not {_kind(value)}")
        if not low <= value <= high:
            raise RowError(f"the number does not fit {kind}")
        return value

    return convert


def _floating(value: Any) -> Any:
    if type(value) is bool or not isinstance(value, int | float | decimal.Decimal):
        raise RowError(f"a number was expected, not {_kind(value)}")
    try:
        number = float(value)
    except OverflowError as error:
        raise RowError("the number does not fit double") from error
    if math.isinf(number):
        raise RowError("the number does not fit double")
    return number


def _binary(value: Any) -> Any:
    if type(value) is not str:
        raise RowError(f"base64 text was expected, not {_kind(value)}")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RowError(f"not base64: {error}") from error


def _timestamp(kind: pa.DataType, unit: TimestampUnit) -> Convert:
    times, divisor = _UNIT_PER_MICRO[kind.unit]

    def convert(value: Any) -> Any:
        if type(value) is str:
            micros = micros_of_text(value)
        elif type(value) is int:
            micros = micros_of_number(value, unit)
        else:
            raise RowError(f"a time was expected, not {_kind(value)}")
        if micros is None:
            raise RowError("the value is not an accepted time (ISO 8601, or an integer since the epoch)")
        scaled = micros * times // divisor
        if not -(1 << 63) <= scaled < 1 << 63:
            raise RowError(f"the time does not fit {kind}")
        return scaled

    return convert


def _date(value: Any) -> Any:
    days = days_of_text(value) if type(value) is str else None
    if days is None:
        raise RowError("a date YYYY-MM-DD was expected")
    return days


def _decimal(kind: pa.DataType) -> Convert:
    step = decimal.Decimal(1).scaleb(-kind.scale)
    context = decimal.Context(prec=kind.precision, traps=[decimal.Inexact, decimal.InvalidOperation])

    def convert(value: Any) -> Any:
        if type(value) is bool or not isinstance(value, int | str | decimal.Decimal):
            raise RowError(f"a number or its text was expected, not {_kind(value)}")
        try:
            return context.quantize(decimal.Decimal(value), step)
        except decimal.DecimalException as error:
            raise RowError(f"the number does not fit {kind}") from error

    return convert


def _list(kind: pa.DataType, item: Convert) -> Convert:
    nullable = kind.value_field.nullable

    def convert(value: Any) -> Any:
        if type(value) is not list:
            raise RowError(f"an array was expected, not {_kind(value)}")
        if not nullable and None in value:
            raise RowError("an item is null and not nullable")
        return [None if v is None else item(v) for v in value]

    return convert


def _struct(kind: pa.DataType, where: str, unit: TimestampUnit) -> Convert:
    fields = [kind.field(i) for i in range(kind.num_fields)]
    inner = [(f.name, f.nullable, _converter(f.type, f"{where}.{f.name}", unit)) for f in fields]

    def convert(value: Any) -> Any:
        if type(value) is not dict:
            raise RowError(f"an object was expected, not {_kind(value)}")
        out = {}
        for name, nullable, item in inner:
            found = value.get(name)
            if found is None and not nullable:
                raise RowError(f"{name!r} is missing or null, but the schema has no `{name}: ... | None`")
            out[name] = None if found is None else item(found)
        return out

    return convert
