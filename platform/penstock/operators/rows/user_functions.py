"""Python functions in a stream: `map`, `flat_map`, `filter`, `map_batches` and key selectors, and their errors.

The payload is a cloudpickle of the function and its row types.
"""

# ruff: noqa: ARG002 - the protocol sets the parameters of hooks

from __future__ import annotations

import gc
import inspect
import io
import itertools
import pickle
import re
import traceback
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa

from penstock.core.elements import TS_COLUMN, Batch
from penstock.core.errors import PenstockError, missing_module_hint, misuse_hint
from penstock.core.schema import schema_from_text
from penstock.core.secrets import redacted
from penstock.functions.moved_modules import MOVED
from penstock.functions.state_calls import none_hint
from penstock.operators.operator import NO_CAPABILITIES, Operator
from penstock.operators.rows.columns import TS_FIELD, ColumnError, assemble, conform, ts_of, without_ts
from penstock.operators.rows.row_codec import RowDecoder, RowEncoder, read_columns
from penstock.operators.rows.row_text import batch_text, value_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from penstock.operators.operator import Capabilities, Collector, OperatorContext


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the cyclic garbage collector; a function's cyclic garbage is collected after the batch."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


#: Limits of the one-line error: characters of the exception's text, and invalid fields of a row.
_MAX_TEXT = 400
_MAX_FAULTS = 3
#: The hint for a worker that has another version of a function's module.
LOAD_HINT = "put the module beside the job file, or name its folder: ps.Environment(python_path=[...])"


#: What a filter's function may return.
_BOOLS = frozenset({bool, np.bool_})
#: Python's error about the result of a `flat_map`.
_NOT_ITERABLE = re.compile(r"'(\w+)' object is not iterable")


class UserFunctionError(PenstockError):
    """A user's function raised; `__cause__` is the exception, its traceback beginning in the user's code."""


class FunctionLoadError(PenstockError):
    """A worker cannot load a user's function; a restart does not help."""


def user_error(where: str, error: BaseException, values: str = "") -> UserFunctionError:
    """Return `error` as a `UserFunctionError` without the engine's frames in its traceback, with any known hint.

    `values` is the row at which it was raised, as text.
    """
    frames = error.__traceback__
    while frames is not None and _is_ours(frames) and frames.tb_next is not None:
        frames = frames.tb_next
    error.with_traceback(frames)
    place = ""
    for frame in traceback.extract_tb(frames):
        place = f" at {frame.filename}:{frame.lineno} in {frame.name}"
        break
    hint = misuse_hint(error) or missing_module_hint(error) or none_hint(error)
    text = f"{type(error).__name__}: {_one_line(error)}"
    if isinstance(error, PenstockError):  # of a state, a timer or the context, which the function has misused
        text, hint = error.message, error.hint
    msg = f"{where}: {text}{place}"
    wrapped = UserFunctionError(msg, hint=hint, values=values)
    wrapped.__cause__ = error
    return wrapped


def _one_line(error: BaseException) -> str:
    """Return the message of an exception; of a row that pydantic rejects, its first fields and their values."""
    from pydantic_core import ValidationError

    if isinstance(error, ValidationError):
        faults = error.errors(include_url=False)
        shown = (
            f"{'.'.join(map(str, f['loc']))}: {f['msg']}, not {value_text(f['input'], 80)}"
            for f in faults[:_MAX_FAULTS]
        )
        return f"{error.title}: {'; '.join(shown)}"
    return redacted(" ".join(str(error).split()), _MAX_TEXT)


class _Unpickler(pickle.Unpickler):
    """Finds classes of ours by the path that an earlier version had for them, too."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        """Return a class or function by name."""
        return super().find_class(MOVED.get(module_name, module_name), global_name)


def load_function(payload: bytes, where: str) -> Any:
    """Return a function that the job has pickled.

    Raises:
        FunctionLoadError: the worker cannot load it.
    """
    try:
        return _Unpickler(io.BytesIO(payload)).load()
    except Exception as error:
        msg = f"{where}: the function cannot be loaded: {type(error).__name__}: {error}"
        raise FunctionLoadError(msg, hint=missing_module_hint(error) or LOAD_HINT) from error


def _innermost(frames: TracebackType) -> TracebackType:
    """Return the frame that raised."""
    while frames.tb_next is not None:
        frames = frames.tb_next
    return frames


def _is_ours(frames: TracebackType) -> bool:
    return str(frames.tb_frame.f_globals.get("__name__", "")).startswith(("penstock.operators.", "penstock.functions."))


class FunctionOperator(Operator):
    """The common part of operators with Python functions: the unpickled function, its location, its schemas."""

    def open(self, context: OperatorContext) -> Capabilities:
        spec = context.spec
        self._uid = spec.uid
        self._where = f"{'filter' if spec.kind == 'filter_rows' else spec.kind} {spec.uid!r}"
        function, row_type, output_type = load_function(spec.payload, self._where)
        self._function: Callable[[Any], Any] = function
        self._input_schema = context.input_schemas[0]
        text = spec.output_schema
        self._schema = without_ts(schema_from_text(text) if text else self._input_schema)
        self._prepare(row_type, output_type)
        return NO_CAPABILITIES

    def _prepare(self, row_type: type | None, output_type: type | None) -> None:
        del output_type  # its schema is the operator's declared one
        self._decoder = RowDecoder(read_columns(self._input_schema, row_type), row_type)
        self._encoder = RowEncoder(self._schema, self._where)


class MapOperator(FunctionOperator):
    """Emits one row for each row, with the same event time."""

    def process_batch(self, batch: Batch, input_index: int, out: Collector) -> None:
        function = self._function
        with gc_paused():
            try:
                rows = [function(row) for row in self._decoder.rows(batch.data)]
            except Exception as error:
                raise user_error(self._where, error, self._decoder.newest(batch.data)) from error
            columns = self._encoder.columns(rows, partial(self._decoder.text, batch.data))
            del rows
        out.batch(Batch(assemble(columns, self._schema, ts_of(batch.data))))


class FlatMapOperator(FunctionOperator):
    """Emits any number of rows for each row, with the event time of that row."""

    def process_batch(self, batch: Batch, input_index: int, out: Collector) -> None:
        function = self._function
        with gc_paused():
            try:
                parts = [tuple(function(row)) for row in self._decoder.rows(batch.data)]
            except Exception as error:
                row = self._decoder.newest(batch.data)
                raise self._no_rows(error, row) or user_error(self._where, error, row) from error
            rows = list(itertools.chain.from_iterable(parts))
            columns = self._encoder.columns(rows) if rows else []
            counts = [len(part) for part in parts]
            del parts, rows
        if not columns:
            return
        ts = ts_of(batch.data)
        if ts is not None:
            ts = pa.array(np.repeat(ts.to_numpy(), counts))
        out.batch(Batch(assemble(columns, self._schema, ts)))

    def _no_rows(self, error: Exception, row: str) -> UserFunctionError | None:
        """Return the error of a result that is no collection of rows; None if the function itself has raised."""
        found = _NOT_ITERABLE.fullmatch(str(error)) if isinstance(error, TypeError) else None
        if found is None or error.__traceback__ is None or not _is_ours(_innermost(error.__traceback__)):
            return None
        msg = f"{self._where}: the function returned {found[1]}, not rows"
        return UserFunctionError(msg, hint="yield rows, or return a list of them: [] for none", values=row)


class FilterRowsOperator(FunctionOperator):
    """Keeps rows for which the function returns True; the rows themselves stay in Arrow."""

    def process_batch(self, batch: Batch, input_index: int, out: Collector) -> None:
        function = self._function
        try:
            with gc_paused():
                answers = [function(row) for row in self._decoder.rows(batch.data)]
        except Exception as error:
            raise user_error(self._where, error, self._decoder.newest(batch.data)) from error
        if not set(map(type, answers)) <= _BOOLS:
            index = next(i for i, answer in enumerate(answers) if type(answer) not in _BOOLS)
            raise self._no_bool(answers[index], self._decoder.text(batch.data, index))
        mask = np.fromiter(answers, np.bool_, batch.num_rows)
        kept = int(mask.sum())
        if kept:
            out.batch(batch if kept == batch.num_rows else Batch(batch.data.filter(pa.array(mask))))

    def _no_bool(self, answer: Any, row: str) -> UserFunctionError:
        """Return the error of an answer that is neither true nor false: a text, for example, would keep every row."""
        shown = "None" if answer is None else f"a value of type {type(answer).__name__}"
        hint = "return True or False" + (": is a return missing?" if answer is None else "")
        msg = f"{self._where}: the function returned {shown}, not a bool"
        return UserFunctionError(msg, hint=hint, values=f"returned: {value_text(answer)}\n{row}")


class MapBatchesOperator(FunctionOperator):
    """Passes whole batches to the function, as a Polars frame if its first parameter is annotated so, else as Arrow.

    The function sees `__ts` when there is event time. It may return it (needed when the number of rows changes),
    otherwise the times of the input rows are put back by position.
    """

    def _prepare(self, row_type: type | None, output_type: type | None) -> None:
        del row_type, output_type  # batches have schemas, no row types
        self._polars = takes_polars(self._function)

    def process_batch(self, batch: Batch, input_index: int, out: Collector) -> None:
        given = pl.DataFrame(pl.from_arrow(batch.data)) if self._polars else batch.data
        try:
            result = self._function(given)
        except Exception as error:
            shown = batch_text(batch.data, without_ts(self._input_schema).names)
            raise user_error(self._where, error, shown) from error
        data = self._record_batch(result)
        if data.num_rows == 0:
            return
        ts = ts_of(batch.data)
        if ts is not None:
            ts = self._event_times(data, ts)
        rows = conform(
            data.drop_columns([TS_COLUMN]) if TS_COLUMN in data.schema.names else data, self._schema, self._where
        )
        out.batch(Batch(assemble(rows.columns, self._schema, ts)))

    def _event_times(self, data: pa.RecordBatch, given: pa.Array) -> pa.Array:
        returned = ts_of(data)
        if returned is not None:
            return conform(data.select([TS_COLUMN]), pa.schema([TS_FIELD]), self._where).column(0)
        if data.num_rows == len(given):
            return given
        msg = f"{self._where}: {len(given)} rows gave {data.num_rows} and the result has no {TS_COLUMN!r}"
        raise ColumnError(msg, hint=f"keep the column {TS_COLUMN!r} in the result, it is the rows' event time")

    def _record_batch(self, result: Any) -> pa.RecordBatch:
        if isinstance(result, pl.DataFrame):
            result = result.rechunk().to_arrow()
        if isinstance(result, pa.Table):
            batches = result.combine_chunks().to_batches()
            return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=result.schema)
        if isinstance(result, pa.RecordBatch):
            return result
        msg = f"{self._where}: returned {type(result).__name__}"
        raise ColumnError(msg, hint="return a pa.RecordBatch, a pa.Table or a pl.DataFrame")


def takes_polars(function: Callable[..., Any]) -> bool:
    """Return whether the first parameter of a batch function is annotated as a Polars frame."""
    try:
        parameters = list(inspect.signature(function, eval_str=True).parameters.values())
    except (TypeError, ValueError, NameError):
        return False
    return bool(parameters) and parameters[0].annotation is pl.DataFrame


class KeySelectorOperator(FunctionOperator):
    """Calls a function for each row; the payload ends with its result type: None (a value), tuple, or a row type."""

    def _prepare(self, row_type: type | None, output_type: type | None) -> None:
        super()._prepare(row_type, output_type)
        given = without_ts(self._input_schema)
        self._keys = pa.schema([field for field in self._schema if field.name not in given.names])
        self._encoder = RowEncoder(self._keys, self._where)
        self._shape = output_type

    def process_batch(self, batch: Batch, input_index: int, out: Collector) -> None:
        """Emit the rows with their keys."""
        function, data = self._function, batch.data
        with gc_paused():
            try:
                keys = [function(row) for row in self._decoder.rows(data)]
            except Exception as error:
                raise user_error(self._where, error, self._decoder.newest(data)) from error
            made = self._columns(keys, partial(self._decoder.text, data))
        rows = [data.column(name) for name in self._schema.names if name not in self._keys.names]
        out.batch(Batch(assemble([*rows, *made], self._schema, ts_of(data))))

    def _columns(self, keys: list[Any], given: Callable[[int], str]) -> list[pa.Array]:
        if self._shape is None:
            return [self._encoder.array(self._keys.field(0), keys, given)]
        if self._shape is not tuple:
            return self._encoder.columns(keys, given)
        members = len(self._keys)
        wrong = next((i for i, key in enumerate(keys) if not isinstance(key, tuple) or len(key) != members), None)
        if wrong is not None:
            key = keys[wrong]
            found = f"a tuple of {len(key)}" if isinstance(key, tuple) else f"of type {type(key).__name__}"
            msg = f"{self._where}: a key is {found}, and its type says a tuple of {members}"
            shown = f"returned: {value_text(key)}\n{given(wrong)}"
            raise ColumnError(msg, hint="return a tuple of that many, or correct the annotation", values=shown)
        return [
            self._encoder.array(field, column, given)
            for field, column in zip(self._keys, zip(*keys, strict=True), strict=True)
        ]


class ConstantKeyOperator(Operator):
    """Assigns the same key to all rows."""

    def open(self, context: OperatorContext) -> Capabilities:
        """Read the schema."""
        self._schema = without_ts(schema_from_text(context.spec.output_schema))
        return NO_CAPABILITIES

    def process_batch(self, batch: Batch, input_index: int, out: Collector) -> None:
        """Emit the rows with the key."""
        rows = [batch.data.column(name) for name in self._schema.names[:-1]]
        zeros = pa.array(np.zeros(batch.data.num_rows, np.int64))
        out.batch(Batch(assemble([*rows, zeros], self._schema, ts_of(batch.data))))
