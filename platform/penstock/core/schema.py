"""Row schemas: a pydantic model for the user, an Arrow schema inside, and the text form of Arrow schemas.

`Schema` is `ps.Schema`. Field types: int -> int64, float -> float64, bool, str, bytes, datetime -> timestamp[us, UTC],
date, Decimal (with `Annotated[Decimal, Precision(p, s)]`), list[T]; `T | None` makes a field nullable.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import decimal
import types
import typing
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

import pydantic

from penstock.core.errors import GraphError, UsageError, argument_text, did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa


@dataclasses.dataclass(frozen=True)
class Precision:
    """Digits and scale of a `Decimal` field."""

    digits: int
    scale: int


class Schema(pydantic.BaseModel):
    """Base of a user's row type: instances are rows in row functions, the class gives the Arrow schema."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    def __init__(self, /, **columns: Any) -> None:
        """Check the values against the types of the columns.

        Raises:
            UsageError: a name is no column; names the columns.
            ValidationError: a column is missing, or its value has another type.
        """
        __tracebackhide__ = True
        try:
            self.__pydantic_validator__.validate_python(columns, self_instance=self)
        except pydantic.ValidationError as error:
            unknown = [str(fault["loc"][-1]) for fault in error.errors() if fault["type"] == "extra_forbidden"]
            if len(unknown) < error.error_count():
                raise
            known = type(self).model_fields
        else:
            return
        msg = f"{type(self).__name__} has no column {', '.join(map(repr, unknown))}"
        raise UsageError(msg, hint=did_you_mean(unknown[0], known))

    # else pydantic calls it also where it validates dicts itself
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def arrow_schema(cls) -> pa.Schema:
        """Return the Arrow schema: one field per attribute, in order, nullable where `None` is allowed.

        Raises:
            GraphError: a field's type has no Arrow type.
        """
        return arrow_schema_of(cls)


def arrow_schema_of(row_type: Any) -> pa.Schema:
    """Return the Arrow schema of a pydantic model, dataclass, TypedDict or NamedTuple.

    Raises:
        GraphError: `row_type` is none of these, or a field's type has no Arrow type.
    """
    import pyarrow as pa

    if isinstance(row_type, type) and issubclass(row_type, pydantic.BaseModel):
        hints: dict[str, Any] = {
            name: Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
            for name, field in row_type.model_fields.items()
        }
    elif dataclasses.is_dataclass(row_type) or typing.is_typeddict(row_type) or hasattr(row_type, "_fields"):
        hints = typing.get_type_hints(row_type, include_extras=True)
    else:
        msg = f"{row_type!r} is not a row type"
        raise GraphError(msg, hint="use a ps.Schema, a dataclass, a TypedDict or a NamedTuple")
    if not hints:
        msg = f"{row_type.__name__} has no fields"
        raise GraphError(msg, hint="annotate each one in the class, for example user_id: int")
    fields = []
    for name, hint in hints.items():
        arrow_type, nullable = _arrow_type(hint, f"{row_type.__name__}.{name}")
        fields.append(pa.field(name, arrow_type, nullable=nullable))
    return pa.schema(fields)


def arrow_field_of(name: str, hint: Any, where: str) -> pa.Field:
    """Return the Arrow field of one annotated value, nullable where `None` is allowed.

    Raises:
        GraphError: the type has no Arrow type; the message begins with `where`.
    """
    import pyarrow as pa

    arrow_type, nullable = _arrow_type(hint, where)
    return pa.field(name, arrow_type, nullable=nullable)


def _arrow_type(hint: Any, where: str) -> tuple[pa.DataType, bool]:
    import pyarrow as pa

    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        precision = next((m for m in args[1:] if isinstance(m, Precision)), None)
        if precision is not None:
            return pa.decimal128(precision.digits, precision.scale), type(None) in get_args(args[0])
        return _arrow_type(args[0], where)
    if origin in (Union, types.UnionType):
        inner = [a for a in args if a is not type(None)]
        if len(inner) == 1 and len(inner) < len(args):
            return _arrow_type(inner[0], where)[0], True
    if origin is list and len(args) == 1:
        item, nullable = _arrow_type(args[0], where)
        return pa.list_(pa.field("item", item, nullable=nullable)), False
    simple: dict[Any, pa.DataType] = {
        int: pa.int64(),
        float: pa.float64(),
        bool: pa.bool_(),
        str: pa.string(),
        bytes: pa.binary(),
        dt.datetime: pa.timestamp("us", tz="UTC"),
        dt.date: pa.date32(),
    }
    if hint in simple:
        return simple[hint], False
    if hint is decimal.Decimal:
        msg = f"{where}: a Decimal needs its precision"
        raise GraphError(msg, hint="write Annotated[Decimal, ps.Precision(18, 2)]")
    msg = f"{where}: {argument_text(hint)} has no Arrow type"
    raise GraphError(
        msg, hint="use int, float, bool, str, bytes, datetime, date, Decimal, list[...] or one of these | None"
    )


def schema_to_text(schema: pa.Schema) -> str:
    """Return the schema as base64 of its Arrow IPC form."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def rows_to_text(rows: pa.RecordBatch) -> str:
    """Return rows as base64 of an Arrow IPC stream."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_batch(rows)
    return base64.b64encode(sink.getvalue()).decode()


def schema_from_text(text: str) -> pa.Schema:
    """Invert `schema_to_text`."""
    import pyarrow as pa

    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
