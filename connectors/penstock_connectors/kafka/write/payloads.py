"""Rows to messages: values by format, keys by column.

A key is the column's value as bytes: text in UTF-8, binary as it is, integers in decimal digits, everything else as
its JSON text; null is no key. Called by the committers and writers; no client library.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from penstock.core.errors import GraphError
from penstock_connectors.formats.arrow_stream import encode_arrow
from penstock_connectors.formats.json_encode import encode_json


def check_rows(schema: pa.Schema, config: dict[str, Any]) -> None:
    """Check that rows of `schema` can be written.

    Raises:
        GraphError: an unknown key column, a format that needs other columns.
    """
    key, kind = config["key"], config["format"]
    where = f"KafkaSink to {config['topic']!r}"
    if key is not None and key not in schema.names:
        raise GraphError(
            f"{where}: key column {key!r} is not in the rows", hint=f"they have: {', '.join(schema.names)}"
        )
    if key is not None and kind == "arrow":
        raise GraphError(
            f"{where}: a message of format 'arrow' holds many rows and has no key", hint="use format='json', or no key"
        )
    if kind != "raw":
        return
    if "value" not in schema.names or not _is_bytes(schema.field("value").type):
        raise GraphError(
            f"{where}: format 'raw' writes a binary or text column named 'value'",
            hint="rename the column with .select(...)",
        )
    if key is None and "key" in schema.names and not _is_bytes(schema.field("key").type):
        raise GraphError(f"{where}: format 'raw' takes 'key' as binary or text", hint="name another column with key=")


def encode(rows: pa.RecordBatch, config: dict[str, Any]) -> tuple[pa.Array, pa.Array | None]:
    """Return values and keys (None: no keys), one per message."""
    kind, key = config["format"], config["key"]
    if kind == "arrow":
        return encode_arrow(rows), None
    keys = None if key is None else encode_keys(rows.column(key))
    if kind == "raw":
        if keys is None and "key" in rows.schema.names:
            keys = rows.column("key")
        return rows.column("value"), keys
    return encode_json(rows), keys


def encode_keys(column: pa.Array) -> pa.Array:
    """Return a column as message keys."""
    if _is_bytes(column.type):
        return column
    if pa.types.is_integer(column.type):
        return column.cast(pa.string())
    texts = encode_json(pa.RecordBatch.from_arrays([column], ["k"])).to_pylist()
    nulls = column.is_null().to_pylist()
    # {"k":...} without its enclosing text
    return pa.array([None if null else text[5:-1] for text, null in zip(texts, nulls, strict=True)], pa.string())


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    )
