"""The stages of windows that keep their rows, of a spread key: partial windows, and their merge.

A partial window has a key with a salt and emits one row per key, salt and window: the accumulators of the aggregates
that have any (`operators.aggregates.combine`), and a part for each other one. The part of a user-defined aggregate is
its accumulator, in columns of its type. That of `count_distinct` is the distinct values and that of `quantile` all
values, packed into bytes. The merge keeps these rows by key and window. Used by `operators.windows.window_rows`; the
API takes the configuration of the merge and the schema of partial rows from here.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from penstock.core.schema import schema_from_text
from penstock.kernels.aggregates import merge
from penstock.kernels.keys.key_columns import fixed_column
from penstock.kernels.keys.key_types import is_fixed
from penstock.operators.aggregates.aggregate_schema import aggregates_of, parse, plain_type
from penstock.operators.aggregates.combine import combined_rows, combined_schema, read_cells
from penstock.operators.process.state_binding import ValueCodec
from penstock.operators.rows.columns import TS_FIELD, without_ts
from penstock.operators.rows.row_codec import RowEncoder
from penstock.operators.rows.user_functions import user_error
from penstock.operators.windows.window_outputs import (
    RowAccumulators,
    accumulated,
    floats,
    plain_values,
    plan_of,
    quantiles,
    result_rows,
    results_of,
)
from penstock.operators.windows.window_schemas import parse_rows
from penstock.operators.windows.window_stages import EndTime, merged_config
from penstock.state.cells.pane_memory import overflow
from penstock.state.cells.value_heap import ValueHeap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.functions.folding_states import Aggregator
    from penstock.kernels.compiler.compile import I64
    from penstock.operators.aggregates.aggregate_schema import Aggregate
    from penstock.operators.windows.window_outputs import FiredRows

_PACKED = pa.large_binary()


@dataclass(frozen=True, slots=True)
class Mergeable:
    """A user-defined aggregate, and the class of its accumulators: None for a plain value."""

    aggregator: Aggregator[Any, Any, Any]
    kind: type | None


# --- configuration ----------------------------------------------------------------------------------------------------


def parts_schema(config: dict[str, Any], rows: pa.Schema, key: pa.Schema) -> pa.Schema:
    """Return the schema of the rows that partial windows emit, by the configuration of either stage.

    `rows` are the columns of the aggregated rows, `key` those of the key without a salt.
    """
    parsed, kinds = parse_rows(config, key.names), _accumulator_kinds(config)
    combined = combined_schema(tuple(key.names), key, plan_of(parsed, rows, key).spec)
    parts = [field for aggregate in parsed.aggregates if aggregate.kept for field in _part_fields(aggregate, kinds)]
    return pa.schema([*without_ts(combined), *parts, TS_FIELD])


def merged_windows(config: dict[str, Any]) -> dict[str, Any]:
    """Return the windows of the merge: one for each end of the windows in a configuration."""
    merged = merged_config(parse(config))
    ends = {"kind": "tumbling", "size_us": merged.size, "offset_us": merged.offset}
    return {**ends, "ends_of": config["window"]}


def _accumulator_kinds(config: dict[str, Any]) -> dict[str, pa.Schema]:
    """Return the columns of the accumulators of user-defined aggregates, by output column."""
    return {alias: schema_from_text(text) for alias, text in config["accumulators"].items()}


def _part_fields(aggregate: Aggregate, kinds: dict[str, pa.Schema]) -> list[pa.Field]:
    """Return the columns of an aggregate's part; null in rows of a version of the job without the aggregate."""
    if aggregate.fn != "aggregator":
        return [pa.field(f"__values_{aggregate.alias}", _PACKED)]
    return [pa.field(f"__accumulator_{aggregate.alias}.{field.name}", field.type) for field in kinds[aggregate.alias]]


# --- packed values ----------------------------------------------------------------------------------------------------


def packed(aggregate: Aggregate, values: pa.Array, window: I64, windows: int) -> pa.Array:
    """Return the part of each window for `count_distinct` or `quantile`; value i belongs to `window[i]`, sorted."""
    values, window = plain_values(values, window)
    if aggregate.fn == "quantile":
        return _words(floats(values).view(np.int64), window, windows)
    if is_fixed(values.type):
        return _words(*_distinct(fixed_column(values).values, window), windows)
    encoded = values.dictionary_encode()
    codes, window = _distinct(encoded.indices.to_numpy().astype(np.int64), window)
    names = encoded.dictionary.to_pylist()
    ends = np.cumsum(np.bincount(window, minlength=windows))
    pieces = np.split(codes, ends[:-1])
    return pa.array([msgspec.msgpack.encode([names[code] for code in piece.tolist()]) for piece in pieces], _PACKED)


def _distinct(values: I64, window: I64) -> tuple[I64, I64]:
    """Return the distinct values of each window, sorted, with their windows."""
    order = np.lexsort((values, window))
    values, window = values[order], window[order]
    new = np.ones(len(values), np.bool_)
    new[1:] = (values[1:] != values[:-1]) | (window[1:] != window[:-1])
    return values[new], window[new]


def _words(values: I64, window: I64, windows: int) -> pa.Array:
    ends = 8 * np.cumsum(np.bincount(window, minlength=windows))
    offsets = np.append(0, ends).astype(np.int64)
    data = np.ascontiguousarray(values)
    return pa.Array.from_buffers(_PACKED, windows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def unpacked(aggregate: Aggregate, kind: pa.DataType, parts: Sequence[Sequence[bytes | None]]) -> pa.Array:
    """Return the result of each window for its parts of `count_distinct` or `quantile` over values of type `kind`."""
    found = [[part for part in own if part is not None] for own in parts]
    if aggregate.fn == "quantile":
        words = [b"".join(own) for own in found]
        window = np.repeat(np.arange(len(words)), [len(own) // 8 for own in words])
        return quantiles(np.frombuffer(b"".join(words), np.float64), window, len(words), aggregate.quantile)
    count = _count_words if is_fixed(plain_type(kind)) else _count_texts
    return pa.array([count(own) for own in found], pa.int64())


def _count_words(parts: list[bytes]) -> int:
    if len(parts) == 1:
        return len(parts[0]) // 8
    return len(np.unique(np.frombuffer(b"".join(parts), np.int64)))


def _count_texts(parts: list[bytes]) -> int:
    return len(set().union(*map(msgspec.msgpack.decode, parts)))


# --- stages -----------------------------------------------------------------------------------------------------------


class _Parts:
    """The aggregates without accumulators of ours, and the codecs of their accumulators."""

    def __init__(self, config: dict[str, Any], own: dict[str, Mergeable], where: str) -> None:
        """`own` are the user-defined aggregates by output column."""
        kinds = _accumulator_kinds(config)
        self.where = where
        self.own = own
        self.fields = {a.alias: _part_fields(a, kinds) for a in aggregates_of(config) if a.kept}
        self.codecs = {
            alias: ValueCodec(kind, own[alias].kind, f"{where}: the accumulator of {alias!r}")
            for alias, kind in kinds.items()
        }


class PartialRows:
    """The parts of windows of a key and a salt; the salt is the last column of the key and ends here."""

    def __init__(
        self,
        config: dict[str, Any],
        schemas: tuple[pa.Schema, pa.Schema, pa.Schema],
        own: dict[str, Mergeable],
        where: str,
    ) -> None:
        """`schemas` are those of the rows, the key and the output."""
        rows, key, output = schemas
        parsed = parse_rows(config, key.names)
        self._aggregates = [aggregate for aggregate in parsed.aggregates if aggregate.kept]
        self._parts = _Parts(config, own, where)
        self._accumulators = RowAccumulators(parsed, rows, key, where)
        names = tuple(key.names[:-1])
        self._combined = combined_schema(names, output, self._accumulators.plan.spec)
        self._output = output

    def rows_of(self, fired: FiredRows, keys: Sequence[pa.Array]) -> pa.RecordBatch:
        """Return keys, accumulators, parts and event time."""
        data, cells = self._accumulators.of(fired)
        columns = [*fired.keys_of(keys[:-1]), pa.array(fired.times, pa.int64())]
        combined = combined_rows(self._combined, self._accumulators.plan.spec, columns, cells)
        found = dict(zip(combined.schema.names, combined.columns, strict=True))
        rows, window = fired.rows, fired.window_of_row
        for aggregate in self._aggregates:
            made = self._part(aggregate, data, rows, window)
            names = [field.name for field in self._parts.fields[aggregate.alias]]
            found |= dict(zip(names, made, strict=True))
        return pa.RecordBatch.from_arrays([found[name] for name in self._output.names], schema=self._output)

    def _part(
        self, aggregate: Aggregate, data: pa.RecordBatch, rows: Sequence[Sequence[Any]], window: I64
    ) -> list[pa.Array]:
        """Return the columns of an aggregate's part."""
        parts, alias, column = self._parts, aggregate.alias, aggregate.column
        if aggregate.fn != "aggregator":
            return [packed(aggregate, data.column(column), window, len(rows))]
        return parts.codecs[alias].encode(accumulated(parts.own[alias].aggregator, rows, column, parts.where))


class MergedRows:
    """The results of windows, from the parts that have their end."""

    def __init__(
        self,
        config: dict[str, Any],
        schemas: tuple[pa.Schema, pa.Schema, pa.Schema],
        own: dict[str, Mergeable],
        where: str,
    ) -> None:
        """`schemas` are those of the parts, the key and the output; `config` has that of the aggregated rows."""
        given, key, self._output = schemas
        parsed = parse_rows(config, key.names)
        self._rows = schema_from_text(config["rows"])
        self._aggregates = parsed.aggregates
        self._parts = _Parts(config, own, where)
        self._plan = plan_of(parsed, self._rows, key)
        self._combined = without_ts(combined_schema((), key, self._plan.spec))
        self._names = without_ts(given).names
        self._encoder = RowEncoder(self._output, where)
        self._time = EndTime(parse({**config, "window": config["window"]["ends_of"]}))

    def rows_of(self, fired: FiredRows, keys: Sequence[pa.Array]) -> pa.RecordBatch:
        """Return keys, bounds, aggregates and event time."""
        rows = fired.rows
        values = zip(*(row for own in rows for row in own), strict=True)
        columns = dict(zip(self._names, map(list, values), strict=True))
        simple = iter(self._plan.outputs(self._cells(columns, fired.window_of_row, len(rows))))
        ends = np.cumsum([len(own) for own in rows])
        made = []
        for aggregate in self._aggregates:
            if aggregate.kept:
                part = [columns[field.name] for field in self._parts.fields[aggregate.alias]]
                made.append(self._merged(aggregate, part, ends))
            else:
                made.append(next(simple))
        bounds = [self._time.bounds(window) for window in fired.windows]
        return result_rows(self._output, fired.keys_of(keys), bounds, made)

    def _cells(self, columns: dict[str, list[Any]], window: I64, windows: int) -> I64:
        """Return the accumulators of each window, whose word 0 is the number of rows.

        Raises:
            PenstockError: an integer sum does not fit 64 bits.
        """
        spec = self._plan.spec
        self._plan.heap = ValueHeap()
        given = [pa.array(columns[field.name], field.type) for field in self._combined]
        parts = read_cells(pa.RecordBatch.from_arrays(given, schema=self._combined), spec, self._plan.heap)
        cells = np.repeat(spec.initial[np.newaxis], windows, axis=0)
        if merge.merge_cells(cells, window, parts, spec.ops):
            raise overflow("a sum of a window")
        cells[:, 0] >>= 1
        return cells

    def _merged(self, aggregate: Aggregate, part: list[list[Any]], ends: I64) -> pa.Array:
        """Return the result of an aggregate per window, of the columns of its part; windows end at `ends`."""
        starts = [0, *ends[:-1].tolist()]
        windows = [range(start, end) for start, end in zip(starts, ends.tolist(), strict=True)]
        if aggregate.fn != "aggregator":
            kind = self._rows.field(aggregate.column).type
            return unpacked(aggregate, kind, [[part[0][row] for row in window] for window in windows])
        there = [any(column[row] is not None for column in part) for row in range(len(part[0]))]
        accumulators = self._parts.codecs[aggregate.alias].decode(part)
        own, where = self._parts.own[aggregate.alias].aggregator, self._parts.where
        found = merged(own, [[accumulators[row] for row in window if there[row]] for window in windows], where)
        sizes = [f"{len(window):,} parts" for window in windows]
        return self._encoder.array(self._output.field(aggregate.alias), results_of(own, found, sizes, where))


def merged(aggregator: Aggregator[Any, Any, Any], windows: Sequence[Sequence[Any]], where: str) -> list[Any]:
    """Return the accumulator of each window, given those of its parts.

    Raises:
        UserFunctionError: the aggregator raised; with the number of parts.
    """
    found = []
    parts: Sequence[Any] = ()
    try:
        for parts in windows:
            found.append(functools.reduce(aggregator.merge, parts) if parts else aggregator.create_accumulator())
    except Exception as error:
        raise user_error(where, error, f"merge of {len(parts):,} parts of a window") from error
    return found
