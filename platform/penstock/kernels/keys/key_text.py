"""Keys as text: parsing of a key by the types of its columns, and values as JSON.

Used by state queries and by the metric of hot keys.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import json
import math
import re
import zoneinfo
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pt

from penstock.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

_BOOLEANS = ("false", "true")
_WHOLE = re.compile(r"[+-]?[0-9]+")
_US = dt.timedelta(microseconds=1)


def parse_key(texts: Sequence[str], schema: pa.Schema) -> pa.RecordBatch:
    """Return a key as one row of the key columns of `schema`.

    Raises:
        UsageError: there are too few or too many parts, or one is no value of its column.
    """
    parts = _parts(texts, schema)
    if len(parts) != len(schema):
        msg = f"the key has {len(schema)} columns ({_shown(schema)}), but {len(parts)} values are given"
        raise UsageError(msg, hint="give one value per column, in this order, or a JSON object")
    return pa.record_batch([_column(part, field) for part, field in zip(parts, schema, strict=True)], schema=schema)


def json_value(value: Any) -> Any:
    """Return a value in a form that JSON can express.

    Times become ISO 8601, decimals their digits, bytes base64; NaN and infinities become text.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, (dt.date, dt.time)):
        return value.isoformat()
    if isinstance(value, dt.timedelta):
        return value // _US
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, list):
        return [json_value(item) for item in value]
    if isinstance(value, dict):
        return {str(name): json_value(item) for name, item in value.items()}
    return value


def _parts(texts: Sequence[str], schema: pa.Schema) -> list[Any]:
    """Return the key's parts: the texts, or the parsed value if the only text is a JSON array or object."""
    if len(texts) != 1 or texts[0].lstrip()[:1] not in ("[", "{"):
        return list(texts)
    try:
        found = json.loads(texts[0], parse_float=Decimal)
    except ValueError:
        return list(texts)
    if isinstance(found, list):
        return found
    unknown = [name for name in found if name not in schema.names]
    missing = [name for name in schema.names if name not in found]
    if unknown or missing:
        what = f"no column {unknown[0]!r}" if unknown else f"a column {missing[0]!r}, which is missing"
        raise UsageError(f"the key has {what}", hint=f"it has: {_shown(schema)}")
    return [found[name] for name in schema.names]


def _column(part: Any, field: pa.Field) -> pa.Array:
    kind = field.type
    try:
        found = pa.array([None if part is None else _value(part, kind)], kind)
        found.to_pylist()  # refuse a time outside Python's range here, where the column is known
    except (ValueError, TypeError, OverflowError, InvalidOperation, binascii.Error, pa.ArrowException) as error:
        msg = f"key column {field.name} has type {kind}, and {part!r} is no value of it"
        raise UsageError(msg, hint=_hint(kind)) from error
    return found


def _value(part: Any, kind: pa.DataType) -> Any:
    if isinstance(part, (list, dict)):
        raise TypeError("a key column cannot be a list or object")
    if pt.is_boolean(kind):
        return _BOOLEANS.index(str(part).lower()) == 1
    if isinstance(part, bool):
        raise TypeError("a truth value")
    if pt.is_integer(kind):
        return _whole(str(part))
    if pt.is_floating(kind):
        return float(part)
    if pt.is_decimal(kind):
        return Decimal(str(part))
    if pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind):
        return base64.b64decode(part, validate=True)
    if pt.is_string(kind) or pt.is_large_string(kind):
        if not isinstance(part, str):
            raise TypeError("no text")
        return part
    return _time(part, kind)


def _whole(text: str) -> int:
    """Parse an integer in decimal digits, with or without a sign."""
    if not _WHOLE.fullmatch(text):
        raise ValueError(text)
    return int(text)


def _time(part: Any, kind: pa.DataType) -> Any:
    """Return a timestamp, date, time or duration: ISO 8601, or (except for dates) a number in the column's units."""
    text = str(part)
    if pt.is_date(kind):
        return dt.date.fromisoformat(text)
    if _WHOLE.fullmatch(text):
        return int(text)
    if pt.is_timestamp(kind):
        found = dt.datetime.fromisoformat(text)
        if kind.tz is None or found.tzinfo is not None:
            return found
        return found.replace(tzinfo=_zone(kind.tz))
    if pt.is_time(kind):
        return dt.time.fromisoformat(text)
    raise ValueError(text)


def _zone(name: str) -> dt.tzinfo:
    """Return the time zone of a column: a name, or an offset such as `+01:00`."""
    return zoneinfo.ZoneInfo(name) if name[0] not in "+-" else dt.datetime.strptime(name, "%z").tzinfo or dt.UTC


def _hint(kind: pa.DataType) -> str:
    if pt.is_date(kind):
        return "give it in ISO 8601, such as 2026-01-31"
    if pt.is_string(kind) or pt.is_large_string(kind):
        return 'write a text that looks like JSON, or null, as a JSON array: ["[7]"], [null]'
    if pt.is_timestamp(kind) or pt.is_time(kind):
        return "give it in ISO 8601, such as 2026-01-31T12:00:00Z or 12:00:00, or as a number in the column's units"
    if pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind):
        return "give bytes in base64"
    if pt.is_boolean(kind):
        return "give true or false"
    return "give a value of the column's type; write null as JSON: [null]"


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
