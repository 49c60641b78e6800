"""`ps.snapshots.write`: a savepoint made of tables, which a job starts from.

Rows that a user passes get the form of segments: the job's types, hashed, with unique keys. `parts` uses the same
for parts of a table that many tasks write.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa

from penstock.checkpoint.manifest_log import Manifest
from penstock.core.clock import SystemClock
from penstock.core.errors import UsageError, did_you_mean
from penstock.core.keygroup import hash_range_of
from penstock.core.rand import SystemRand
from penstock.core.schema import schema_from_text
from penstock.core.snapshot import KeyedStateSnapshot, SubtaskSnapshot
from penstock.graph.job_graph import JobGraph, JobVertex, OperatorSpec
from penstock.kernels.keys.hashing import hash_columns
from penstock.snapshots.access.content import identity_of
from penstock.snapshots.access.declared import with_states
from penstock.snapshots.access.opening import open_target
from penstock.state.log.row_spec import ENTRY, TIMERS, is_value
from penstock.state.log.segment_columns import (
    DELETED,
    KEY_HASH,
    LAST_ACCESS,
    NAMESPACE,
    SEQ,
    entry_names,
    key_names,
)
from penstock.task.checkpoint.savepoint_copy import SavepointWriter

if TYPE_CHECKING:
    from penstock.core.keygroup import HashRange

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
            UsageError: see `typed` and `require_unique`.
        """
        table = self.typed(given)
        self.require_unique(table)
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
                raise UsageError(f"{self.where}: it has no column {name!r}", hint=did_you_mean(name, named))
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

    def require_unique(self, table: pa.Table, hint: str = "keep one row a key") -> None:
        """Refuse rows with the same key, of which only one would count; raises UsageError."""
        duplicates = pl.DataFrame(pl.from_arrow(table.select(identity_of(self.schema))))
        duplicates = duplicates.filter(duplicates.is_duplicated())
        if duplicates.height:
            example = ", ".join(f"{name}={value!r}" for name, value in duplicates.row(0, named=True).items())
            msg = f"{self.where}: {duplicates.height} rows share their key with another row, for example {example}"
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
        raise UsageError(msg, hint=did_you_mean(uid, operators))
    if state is None:
        own = [name for name in operator.states if not name.startswith("__")]
        if len(own) != 1:
            msg = f"{caller}: {uid!r} declares {len(own)} states"
            raise UsageError(msg, hint=f"name one of them: {', '.join(own)}")
        state = own[0]
    if state not in operator.states:
        msg = f"{caller}: {uid!r} declares no state {state!r}"
        raise UsageError(msg, hint=did_you_mean(state, operator.states))
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


#: The job name of a snapshot that no job took; no job's folder has the name of a run.
_ORIGIN = "bootstrap"


class Job(Protocol):
    """Builds a job: a `ps.Environment`."""

    def job_graph(self) -> JobGraph:
        """Return the job as it is submitted."""


def write(
    uri: str, states: Mapping[tuple[str, str], pl.DataFrame | pl.LazyFrame | pa.Table], *, job: Job | JobGraph
) -> str:
    """Write a savepoint whose states are tables, and return its URI; `penstock run --from` starts the job from it.

    `states` maps (uid, state) to its rows, with the columns of `ps.snapshots.read`: key columns, `__namespace` (of
    windows and timers: the pane's start or the timer's time in microseconds; otherwise optional), value columns. For a
    running aggregate or a window these are the accumulators (`__rows`, `sum_amount`...), for a process function's value
    its fields. `job` (a `ps.Environment` with the job built on it) defines the states: columns are cast to its types if
    nothing is lost. Every other state begins empty, and sources begin at their start.

    Raises:
        UsageError: `uri` is not empty; the job has no such state; a column is missing, unknown or of another type; or
        two rows have one key.
        StorageError: `uri` cannot be written.
    """
    graph = with_states(job if isinstance(job, JobGraph) else job.job_graph())
    tables = {}
    for (uid, state), rows in states.items():
        wanted = state_rows(graph, uid, state, "snapshots.write")
        tables[uid, state] = wanted.text, wanted.prepared(_table(rows))
    target = open_target(uri)
    writer = SavepointWriter(target, target)
    subtasks = []
    for vertex in graph.vertices:
        own = [(uid, state) for uid, state in tables if any(o.uid == uid for o in vertex.operators)]
        for subtask in range(vertex.parallelism if own else 0):
            part = _Part(vertex, subtask, hash_range_of(subtask, vertex.parallelism, graph.settings.key_groups))
            keyed = tuple(_write_state(writer, part, place, tables[place]) for place in own)
            subtasks.append(SubtaskSnapshot(vertex_id=vertex.id, subtask=subtask, keyed=keyed))
    writer.manifest(bootstrap_manifest(graph, target.uri, tuple(subtasks)))
    return target.uri


def bootstrap_manifest(graph: JobGraph, uri: str, subtasks: tuple[SubtaskSnapshot, ...] = ()) -> Manifest:
    """Return the manifest of a savepoint at `uri` that no job took: state that is not in `subtasks` begins empty."""
    run = f"{_ORIGIN}-{SystemRand().token(12)}"
    return Manifest(
        kind="savepoint",
        sequence=0,
        job_id="0" * 32,
        job_name=run,
        run_id=run,
        generation=0,
        nonce=run,
        created_ms=SystemClock().now_ms(),
        checkpoint_id=0,
        graph_fingerprint=graph.fingerprint,
        key_groups=graph.settings.key_groups,
        operators=graph.stateful_operators(),
        subtasks=subtasks,
        barrier="savepoint",
        note=uri,
        origin=uri,
    )


class _Part:
    """One subtask of a vertex and its hash range."""

    def __init__(self, vertex: JobVertex, subtask: int, hashes: HashRange) -> None:
        self.vertex, self.subtask, self.hashes = vertex, subtask, hashes


def _write_state(
    writer: SavepointWriter, part: _Part, place: tuple[str, str], prepared: tuple[str, pa.Table]
) -> KeyedStateSnapshot:
    """Write the rows of one state for one subtask."""
    schema, table = prepared
    hashes = table.column(KEY_HASH).to_numpy()
    first = int(np.searchsorted(hashes, part.hashes.low, side="left"))
    stop = int(np.searchsorted(hashes, part.hashes.high, side="right"))
    state = KeyedStateSnapshot(
        uid=place[0], state=place[1], schema=schema, hash_low=part.hashes.low, hash_high=part.hashes.high
    )
    return writer.rows(state, iter([table.slice(first, stop - first)] if stop > first else []))


def _table(rows: Any) -> pa.Table:
    if isinstance(rows, pl.LazyFrame):
        rows = rows.collect()
    if isinstance(rows, pl.DataFrame):
        return rows.to_arrow()
    if isinstance(rows, pa.Table):
        return rows
    msg = f"snapshots.write: {type(rows).__name__} is not a table"
    raise UsageError(msg, hint="pass a Polars frame or a pyarrow.Table")
