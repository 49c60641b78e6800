"""Keys in state queries: parsing of a key given as text, values as JSON, and rows per key of a table.

Returned by the tables, called by `penstock.task.drive.state_queries`.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import json
import math
import re
import zoneinfo
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from penstock.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.keygroup import HashRange
    from penstock.kernels.compiler.compile import I64
    from penstock.state.keys.key_index import Keys

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


#: Columns of `KeyCounts.page` after those of the key.
HASH, ROWS = "__hash", "__rows"

#: Most keys that are counted; of more, an even sample.
MOST_KEYS = 1 << 20


@dataclass(frozen=True, slots=True)
class KeyCounts:
    """Rows per key: the signed hash of each key, and its number of rows (booleans count as 0 and 1)."""

    hashes: I64
    rows: np.ndarray
    #: The key stores and their sizes, in the order of `hashes`; a key in several stores is in each of them.
    places: tuple[tuple[Keys, int], ...] = ()

    def by_group(self, key_groups: int, most: int = MOST_KEYS) -> dict[int, int]:
        """Return the rows of every key group that has any; of more than `most` keys, estimated from a sample."""
        step = max(1, -(-len(self.hashes) // most))
        hashes, rows = self.hashes[::step], self.rows[::step]
        groups = (((hashes >> 32) + (1 << 31)) * key_groups) >> 32
        if len(groups) == 0:
            return {}
        first = int(groups.min())
        found = np.bincount(groups - first, weights=rows) * step
        return {first + int(group): round(found[group]) for group in np.flatnonzero(found)}

    @property
    def total(self) -> int:
        """The rows of all keys."""
        return int(self.rows.sum(dtype=np.int64))

    def page(self, between: HashRange, most: int) -> tuple[pa.Table, bool]:
        """Return the first `most` keys with rows in a hash range, in hash order, one row a key.

        All keys with the last hash are returned, so there may be more than `most`. The columns are the key's, `HASH`
        and `ROWS`. The second result is whether keys with higher hashes remain.
        """
        inside = np.flatnonzero((self.rows > 0) & (self.hashes >= between.low) & (self.hashes <= between.high))
        count = len(inside)
        if count > most:
            hashes = self.hashes[inside]
            inside = inside[hashes <= np.partition(hashes, most - 1)[most - 1]]
        more = len(inside) < count
        parts, first = [], 0
        for keys, held in self.places:
            begin, end = np.searchsorted(inside, (first, first + held))
            parts.append(self._gathered(keys, inside[begin:end], first))
            first += held
        found = pa.concat_tables(parts).sort_by(HASH)
        if len(parts) == 1:
            return found, more
        names = [*self.places[0][0].schema.names, HASH]
        merged = found.group_by(names, use_threads=False).aggregate([(ROWS, "sum")])
        return merged.select([*names, f"{ROWS}_sum"]).rename_columns([*names, ROWS]).sort_by(HASH), more

    def _gathered(self, keys: Keys, places: I64, first: int) -> pa.Table:
        columns = keys.gather((places - first).astype(np.int32))
        figures = [pa.array(self.hashes[places]), pa.array(self.rows[places].astype(np.int64))]
        return pa.table([*columns, *figures], names=[*keys.schema.names, HASH, ROWS])
