"""Rows that a user passes for a state, in the form of segments: of the job's types, hashed, with unique keys.

Called by `ps.snapshots.write` with whole tables, and with parts of one where many tasks write
(`snapshots.rewrite.parts`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa

from penstock.core.errors import UsageError
from penstock.core.names import near
from penstock.core.schema import schema_from_text
from penstock.graph.job_graph import JobGraph, OperatorSpec
from penstock.kernels.keys.hashing import hash_columns
from penstock.snapshots.access.content import identity_of
from penstock.state.log.migration import is_value
from penstock.state.log.row_spec import ENTRY, TIMERS
from penstock.state.log.segment_columns import DELETED, KEY_HASH, LAST_ACCESS, NAMESPACE, SEQ
from penstock.state.log.segments import entry_names, key_names

#: Kinds whose functions declare states.
_PROCESS_KINDS = frozenset({"process", "co_process", "broadcast_process"})
#: Kinds whose rows have no namespace: it is 0 if it is not given.
_WITHOUT_NAMESPACE = _PROCESS_KINDS | {"running_aggregate", "deduplicate"}


@dataclass(frozen=True)
class StateRows:
    """One state of a job's operator, and the requirements for its rows."""

    operator: OperatorSpec
    state: str
    #: The beginning of error messages.
    where: str

    @property
    def text(self) -> str:
        """Return its columns in a file, as text."""
        return self.operator.states[self.state]

    @property
    def schema(self) -> pa.Schema:
        """Return its columns in a file."""
        return schema_from_text(self.text)

    @property
    def is_list(self) -> bool:
        """Return whether it holds lists, whose elements are numbered."""
        kinds = self.operator.config.get("kinds", {}) if self.operator.kind in _PROCESS_KINDS else {}
        return bool(kinds.get(self.state, {}).get("kind") == "list")

    def prepared(self, given: pa.Table) -> pa.Table:
        """Return all rows of the state in the form of a segment, sorted by hash.

        Raises:
            UsageError: see `typed` and `require_once`.
        """
        table = self.typed(given)
        self.require_once(table)
        return self.numbered(table)

    def typed(self, given: pa.Table) -> pa.Table:
        """Return some rows with the columns of a segment, sorted by hash.

        Raises:
            UsageError: a column is missing, unknown, of another type, or has nulls where none are allowed.
        """
        schema, rows = self.schema, given.num_rows
        named = [name for name in schema.names if name not in (KEY_HASH, DELETED, SEQ)]
        for name in given.column_names:
            if name not in named and name != KEY_HASH:
                raise UsageError(f"{self.where}: it has no column {name!r}", hint=near(name, named))
        optional = NAMESPACE in named and self.operator.kind in _WITHOUT_NAMESPACE
        if optional and not self.state.startswith(TIMERS) and NAMESPACE not in given.column_names:
            given = given.append_column(NAMESPACE, pa.array(np.zeros(rows, np.int64)))
        columns: dict[str, Any] = {name: _column(given, schema.field(name), self.where) for name in named}
        for name in _never_null(self.operator, self.state, schema):
            if columns[name].null_count:
                msg = f"{self.where}: column {name!r} holds nulls"
                raise UsageError(msg, hint="fill them, or leave these rows out")
        batch = pa.table(columns).combine_chunks().to_batches(max_chunksize=max(1, rows))
        hashes = hash_columns(batch[0], key_names(schema)) if rows else np.empty(0, np.int64)
        columns |= {
            KEY_HASH: pa.array(hashes),
            DELETED: pa.array(np.zeros(rows, np.bool_)),
            SEQ: pa.array(np.arange(rows)),
        }
        table = pa.table([columns[name] for name in schema.names], schema=schema)
        return table.take(pa.array(np.argsort(hashes, kind="stable")))

    def require_once(self, table: pa.Table, hint: str = "keep one row a key") -> None:
        """Refuse rows with the same key, of which only one would count; raises UsageError."""
        twice = pl.DataFrame(pl.from_arrow(table.select(identity_of(self.schema))))
        twice = twice.filter(twice.is_duplicated())
        if twice.height:
            example = ", ".join(f"{name}={value!r}" for name, value in twice.row(0, named=True).items())
            msg = f"{self.where}: {twice.height} rows share their key with another row, for example {example}"
            raise UsageError(msg, hint=hint)

    def numbered(self, table: pa.Table) -> pa.Table:
        """Return lists with indices from 0 on, without gaps, in the order of the given indices.

        All elements of a list have to be in the table; rows of other states stay as they are.
        """
        if not self.is_list:
            return table
        keys = list(key_names(table.schema))
        indices = pl.DataFrame(pl.from_arrow(table.select([*keys, ENTRY]))).select(
            (pl.col(ENTRY).rank("ordinal").over(keys) - 1).cast(pl.Int64)
        )
        place = table.schema.get_field_index(ENTRY)
        return table.set_column(place, table.schema.field(place), indices.to_series().to_arrow())


def state_rows(graph: JobGraph, uid: str, state: str | None, caller: str) -> StateRows:
    """Return a state of a graph `with_states`; without a name, the operator's only state that is not the engine's own.

    Raises:
        UsageError: there is no such state, or several and none is named; names the nearest.
    """
    operators = {o.uid: o for vertex in graph.vertices for o in vertex.operators if o.states}
    operator = operators.get(uid)
    if operator is None:
        msg = f"{caller}: the job keeps no keyed state of uid {uid!r}"
        raise UsageError(msg, hint=near(uid, operators))
    if state is None:
        own = [name for name in operator.states if not name.startswith("__")]
        if len(own) != 1:
            msg = f"{caller}: {uid!r} declares {len(own)} states"
            raise UsageError(msg, hint=f"name one of them: {', '.join(own)}")
        state = own[0]
    if state not in operator.states:
        msg = f"{caller}: {uid!r} declares no state {state!r}"
        raise UsageError(msg, hint=near(state, operator.states))
    plain = msgspec.structs.replace(operator, payload=b"")  # the operator travels to tasks, which run no user code
    return StateRows(plain, state, f"{caller}: {uid}/{state}")


def _column(given: pa.Table, field: pa.Field, where: str) -> pa.ChunkedArray:
    if field.name not in given.column_names:
        msg = f"{where}: the column {field.name!r} ({field.type}) is missing"
        raise UsageError(msg, hint=f"there are: {', '.join(given.column_names)}")
    column = given.column(field.name)
    try:
        cast = column.cast(field.type)
    except (pa.ArrowException, ValueError) as error:
        msg = f"{where}: column {field.name!r} of type {column.type} cannot be {field.type}: {error}"
        raise UsageError(msg, hint="cast it first, so that any loss is your decision") from error
    return cast


def _never_null(operator: OperatorSpec, state: str, schema: pa.Schema) -> list[str]:
    """Return the columns that need a value in every row, such as a function's value that is declared without None.

    A row without an index or map key would clear its key; one without the time of its last access has no age.
    """
    plain = [field.name for field in schema if not field.nullable and field.name not in (KEY_HASH, DELETED, SEQ)]
    plain += [*entry_names(schema), *([LAST_ACCESS] if LAST_ACCESS in schema.names else [])]
    text = operator.config.get("states", {}).get(state) if operator.kind in _PROCESS_KINDS else None
    if text is None:
        return plain
    values = [field.name for field in schema if is_value(field)]
    return plain + [n for n, declared in zip(values, schema_from_text(text), strict=True) if not declared.nullable]
