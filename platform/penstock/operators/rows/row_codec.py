"""Rows as Python objects: columns are decoded once into rows, returned rows are encoded once into columns.

`ProcessOutput` collects the output of a function during one batch. Used by all operators that call row functions.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import datetime as dt
import functools
import itertools
import numbers
import operator
import types
import typing
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.types as pt
import pydantic

from penstock.core.elements import TS_COLUMN, Batch
from penstock.core.errors import did_you_mean
from penstock.core.schema import arrow_schema_of
from penstock.kernels.rows.python_values import python_values
from penstock.operators.rows.columns import ColumnError, assemble, without_ts
from penstock.operators.rows.row_text import numbered_row, short_text, value_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from penstock.operators.operator import Collector

#: Types whose values have no fraction, and those of a column of lists.
_INTEGERS, _LISTS = frozenset((int, bool, types.NoneType)), frozenset((list, tuple, types.NoneType))


def read_columns(schema: pa.Schema, row_type: Any) -> pa.Schema:
    """Return the columns that a row type has; others need not be decoded."""
    return schema if row_type is None else pa.schema([schema.field(name) for name in arrow_schema_of(row_type).names])


class RowDecoder:
    """Makes row objects of one schema."""

    def __init__(self, schema: pa.Schema, row_type: type | None) -> None:
        """Rows are of `row_type`, or plain named tuples; `__ts` is not part of a row."""
        self.names = without_ts(schema).names
        self._make = row_maker(self.names, row_type)
        #: The first column's values from which no row was made yet.
        self._unread: Iterator[Any] = iter(())

    def rows(self, batch: pa.RecordBatch) -> Iterator[Any]:
        """Return the batch's rows, lazily, from columns decoded at once."""
        columns = [python_values(batch.column(name)) for name in self.names]
        if not columns:
            return (self._make([]) for _ in range(batch.num_rows))
        self._unread = iter(columns[0])
        return self._make([self._unread, *columns[1:]])

    def newest(self, batch: pa.RecordBatch) -> str:
        """Return the newest row made from this batch, the last one given to `rows`, as text for an error."""
        if not self.names or not batch.num_rows:
            return ""
        return numbered_row(batch, batch.num_rows - 1 - operator.length_hint(self._unread), self.names)

    def text(self, batch: pa.RecordBatch, index: int) -> str:
        """Return a row of a batch as text for an error."""
        return numbered_row(batch, index, self.names) if self.names else ""


#: Special methods that construct a model or guard its fields; row structs define their own.
_MAKING = {
    "__new__",
    "__init__",
    "__post_init__",
    "__init_subclass__",
    "__class_getitem__",
    "__setattr__",
    "__delattr__",
}


#: Properties of a model that describe its fields, not a row.
_PLAIN = (int, float, str, bytes, dt.date, type(None))


def _has(row: Any, name: str) -> bool:
    """Return whether a row has a field."""
    try:
        row[name] if isinstance(row, dict) else getattr(row, name)
    except (AttributeError, KeyError):
        return False
    return True


class RowEncoder:
    """Encodes the results of a row function into columns."""

    def __init__(self, schema: pa.Schema, where: str) -> None:
        """Make an encoder for the fields of `schema` (without `__ts`); `where` begins each error."""
        self.schema = without_ts(schema)
        self._where = where
        names = self.schema.names
        self._attributes: Callable[[Any], Any] = (
            operator.attrgetter(*names) if len(names) > 1 else lambda row: (getattr(row, names[0]),)
        )
        self._items: Callable[[Any], Any] = (
            operator.itemgetter(*names) if len(names) > 1 else lambda row: (row[names[0]],)
        )

    def columns(self, rows: Sequence[Any], given: Callable[[int], str] | None = None) -> list[pa.Array]:
        """Return one array per field.

        `given`: each row is the result of one call, as in `map`; it returns the call's input row as text for an error.

        Raises:
            ColumnError: a row lacks a field, or a value does not fit its column.
        """
        try:
            plain = not any(issubclass(kind, dict) for kind in set(map(type, rows)))
            values = list(zip(*map(self._attributes if plain else self._values, rows), strict=True))
            if not plain and any(len(row) != len(self.schema) for row in rows if isinstance(row, dict)):
                raise self._unknown_field(rows, given)
        except (AttributeError, KeyError) as error:
            raise self._missing_field(rows, given) from error
        except TypeError as error:
            msg = f"{self._where}: {error}"
            raise ColumnError(msg, hint="return an instance of the declared row type") from error
        return [self.array(field, column, given) for field, column in zip(self.schema, values, strict=True)]

    def _missing_field(self, rows: Sequence[Any], given: Callable[[int], str] | None) -> ColumnError:
        """Return the error of the first row that lacks a field."""
        nones = [] if given is None else [index for index, row in enumerate(rows) if row is None]
        if given is not None and nones:
            msg = f"{self._where}: the function returned None"
            hint = "is a return missing? to drop rows, use filter or flat_map"
            return ColumnError(msg, hint=hint, values=given(nones[0]))
        index, field = next(
            (i, name) for i, row in enumerate(rows) for name in self.schema.names if not _has(row, name)
        )
        row, hint = rows[index], f"rows must have: {', '.join(self.schema.names)}"
        unknown = self._unknown(row)
        if isinstance(row, _PLAIN) and given is None:
            hint += "; a function that gives one row yields it, or returns it in a list"
        what = f", and has the unknown field {unknown}" if unknown else f": it is of type {type(row).__name__}"
        msg = f"{self._where}: a row has no field {field!r}{what}"
        return ColumnError(msg, hint=hint, values=_returned(row, given, index), index=index)

    def _unknown_field(self, rows: Sequence[Any], given: Callable[[int], str] | None) -> ColumnError:
        """Return the error of the first dict with a key that is no field: its value would be lost."""
        index, unknown = next((i, key) for i, row in enumerate(rows) if (key := self._unknown(row)))
        msg = f"{self._where}: a row has the unknown field {unknown}"
        hint = did_you_mean(unknown.strip("'"), self.schema.names)
        return ColumnError(msg, hint=hint, values=_returned(rows[index], given, index), index=index)

    def _unknown(self, row: Any) -> str:
        """Return the first key of a dict that is no field, as text; empty for any other row."""
        names = self.schema.names
        return next((short_text(repr(key)) for key in row if key not in names), "") if isinstance(row, dict) else ""

    def _values(self, row: Any) -> Any:
        return self._items(row) if isinstance(row, dict) else self._attributes(row)

    def array(self, field: pa.Field, values: Sequence[Any], given: Callable[[int], str] | None = None) -> pa.Array:
        """Return one field's values as an array; `given` as in `columns`.

        Raises:
            ColumnError: a value does not fit.
        """
        try:
            array = _exact_array(values, field.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            index = _first_unfit(values, field.type)
            kind = f"a value of type {type(values[index]).__name__}"
            msg = f"{self._where}: field {field.name!r} does not fit {field.type}: it got {kind}"
            why = str(error).splitlines()[0]
            found = _returned({field.name: values[index]}, given, index, f" ({short_text(why)})")
            raise ColumnError(msg, hint="correct the declared type or the value", values=found, index=index) from error
        if not field.nullable and array.null_count:
            msg = f"{self._where}: field {field.name!r} was None in {array.null_count} of {len(array)} rows"
            index = next(i for i, value in enumerate(values) if value is None)
            found = "" if given is None else given(index)
            raise ColumnError(msg, hint="declare the field as `T | None` or return a value", values=found, index=index)
        return array


def _exact_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return values as an array of a type.

    Arrow would drop the fraction of a number in a column of integers, and the time of day in one of dates.

    Raises:
        ArrowInvalid, ArrowTypeError, OverflowError: a value does not fit.
    """
    _require_exact(values, kind)
    return pa.array(values, type=kind)


def _require_exact(values: Sequence[Any], kind: pa.DataType) -> None:
    if pt.is_integer(kind):
        if not _INTEGERS.issuperset(map(type, values)):
            for value in values:
                if isinstance(value, numbers.Real | Decimal) and value % 1 != 0:
                    raise pa.ArrowInvalid(f"{value!r} is not a whole number")
    elif pt.is_date32(kind):
        for value in values:
            if isinstance(value, dt.datetime) and value.time() != dt.time():
                raise pa.ArrowInvalid(f"{value!r} has a time of day")
    elif (pt.is_list(kind) or pt.is_large_list(kind)) and _LISTS.issuperset(map(type, values)):
        _require_exact(list(itertools.chain.from_iterable(value or () for value in values)), kind.value_type)


def _first_unfit(values: Sequence[Any], kind: pa.DataType) -> int:
    """Return the index of the first value that cannot be of a type; the last one if each alone can."""
    for index, value in enumerate(values):
        try:
            _exact_array([value], kind)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            return index
    return len(values) - 1


def _returned(result: Any, given: Callable[[int], str] | None, index: int, why: str = "") -> str:
    """Return a function's result as text for an error, and its input row if that is known."""
    text = f"{'value' if given is None else 'returned'}: {value_text(result)}{why}"
    return text if given is None else f"{text}\n{given(index)}"


def row_maker(names: list[str], row_type: type | None) -> Callable[[Sequence[Iterable[Any]]], Iterator[Any]]:
    """Return a function that makes row objects from columns of Python values, lazily."""
    if row_type is None:
        made = named_tuple_of("Row", names)
    elif issubclass(row_type, pydantic.BaseModel):
        model_row = _model_row_of(row_type, names)
        return lambda columns: map(model_row, *columns) if columns else model_row()
    elif typing.is_typeddict(row_type):
        return lambda columns: (dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True))
    elif dataclasses.is_dataclass(row_type):
        return lambda columns: (
            row_type(**dict(zip(names, values, strict=True))) for values in zip(*columns, strict=True)
        )
    else:
        made = row_type  # a NamedTuple, as arrow_schema_of has checked
    # Not `made._make`, which is a Python function around this one.
    make = functools.partial(tuple.__new__, made)
    return lambda columns: map(make, zip(*columns, strict=True))


def named_tuple_of(title: str, names: Iterable[str]) -> Any:
    """Return a named tuple class with attributes `names`, which may be any strings."""
    wanted = list(names)
    make_class: Any = collections.namedtuple  # noqa: PYI024 - the fields are known only at run time
    made: Any = make_class(title, wanted, rename=True)
    for given, name in zip(made._fields, wanted, strict=True):
        if given != name:
            setattr(made, name, made.__dict__[given])
    return made


def _model_row_of(model: type[pydantic.BaseModel], names: list[str]) -> Any:
    """Return a struct class that behaves like an instance of `model` and is converted to one where required.

    A struct is made and read in C: a quarter of the time of a named tuple.
    """

    def as_model(row: Any) -> pydantic.BaseModel:
        return model.model_construct(**{name: getattr(row, name) for name in names})

    def fallback(row: Any, name: str) -> Any:
        return getattr(as_model(row), name)

    body: dict[str, Any] = {
        "__class__": property(lambda _: model),
        "__getattr__": fallback,
        "__eq__": lambda row, other: as_model(row) == _plain(other),
        "__ne__": lambda row, other: as_model(row) != _plain(other),
        "__hash__": lambda row: hash(as_model(row)),
        "__repr__": lambda row: repr(as_model(row)),
        "__str__": lambda row: str(as_model(row)),
        "__reduce__": lambda row: (model.model_construct, (), as_model(row).__getstate__()),
        "__iter__": lambda row: iter(as_model(row)),
        "__copy__": lambda row: row,
        "__deepcopy__": lambda row, memo: copy.deepcopy(as_model(row), memo),
        "as_row_model": as_model,
    }
    for name in _operators_of(model) - body.keys():
        body[name] = functools.partialmethod(_forward, as_model, name)
    fields = [(name, object) for name in names]
    return msgspec.defstruct(model.__name__, fields, namespace=body, frozen=True, eq=False, gc=False)


def _operators_of(model: type[pydantic.BaseModel]) -> set[str]:
    """Return the special methods that the model's classes define: Python looks them up on the row's type."""
    own = itertools.takewhile(lambda base: base is not pydantic.BaseModel, model.__mro__)
    found = {name for base in own for name, value in vars(base).items() if isinstance(value, types.FunctionType)}
    return {name for name in found if name[:2] == name[-2:] == "__" and "pydantic" not in name} - _MAKING


def _forward(row: Any, as_model: Callable[[Any], Any], name: str, *args: Any) -> Any:
    return getattr(as_model(row), name)(*map(_plain, args))


def _plain(other: Any) -> Any:
    return other.as_row_model() if hasattr(type(other), "as_row_model") else other


class ProcessOutput:
    """Rows, each with the time of its input row or timer."""

    def __init__(self, schema: pa.Schema, sides: dict[str, pa.Schema], where: str) -> None:
        """Make an empty output; `schema` and `sides` are the outputs' schemas, with `__ts` if there is event time."""
        self.rows: list[Any] = []
        #: One entry for each row or timer with output: number of rows so far, and its time.
        self.ends: list[int] = []
        self.times: list[int] = []
        #: tag -> (time, row).
        self.sides: dict[str, list[tuple[int, Any]]] = {tag: [] for tag in sides}
        self._timed = TS_COLUMN in schema.names
        self._encoder = RowEncoder(schema, where)
        self._side_encoders = {tag: RowEncoder(side, f"{where}, side output {tag!r}") for tag, side in sides.items()}

    def emit(self, out: Collector, moments: Sequence[int] | None = None) -> None:
        """Emit all rows and clear; with `moments`, those of `ends`, in this order instead of that of the calls."""
        for tag, found in self.sides.items():
            if found:
                times = pa.array([time for time, _ in found], pa.int64()) if self._timed else None
                out.side(tag, self._batch(self._side_encoders[tag], [row for _, row in found], times))
                found.clear()
        if not self.rows:
            return
        ends = np.array([0, *self.ends], np.int64)
        counts = ends[1:] - ends[:-1]
        times = pa.array(np.repeat(np.array(self.times, np.int64), counts)) if self._timed else None
        batch = self._batch(self._encoder, self.rows, times)
        if moments is not None:
            order = np.argsort(np.repeat(np.array(moments, np.int64), counts), kind="stable")
            batch = Batch(batch.data.take(pa.array(order)))
        self.rows.clear()
        self.ends.clear()
        self.times.clear()
        out.batch(batch)

    @staticmethod
    def _batch(encoder: RowEncoder, rows: list[Any], times: pa.Array | None) -> Batch:
        return Batch(assemble(encoder.columns(rows), without_ts(encoder.schema), times))
