"""`ps.snapshots.write`: a savepoint made of tables, which a job starts from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import polars as pl
import pyarrow as pa

from penstock.checkpoint.manifest import Manifest
from penstock.core.clock import SystemClock
from penstock.core.errors import UsageError
from penstock.core.keygroup import hash_range_of
from penstock.core.rand import SystemRand
from penstock.core.schema import schema_from_text
from penstock.core.snapshot import KeyedStateSnapshot, SubtaskSnapshot
from penstock.graph.job_graph import JobGraph, JobVertex, OperatorSpec
from penstock.graph.validate import near
from penstock.kernels.hashing import hash_columns
from penstock.snapshots.content import field_id, identity_of
from penstock.snapshots.declared import with_states
from penstock.snapshots.opening import open_target
from penstock.state.accumulators import DELETED, KEY_HASH, LAST_ACCESS, NAMESPACE, SEQ
from penstock.state.row_spec import ENTRY, TIMERS
from penstock.state.segments import entry_names, key_names
from penstock.task.savepoint import SavepointWriter

if TYPE_CHECKING:
    from penstock.core.keygroup import HashRange

#: What a snapshot that no job took calls its job; no job's folder has the name of a run.
_ORIGIN = "bootstrap"
#: Value columns have field ids above it.
_LAST_FIXED_ID = 1000
#: Kinds whose states a function declares.
_PROCESS_KINDS = frozenset({"process", "co_process", "broadcast_process"})
#: Kinds whose rows have no namespace: it is 0 where it is not given.
_WITHOUT_NAMESPACE = _PROCESS_KINDS | {"running_aggregate", "deduplicate"}


class Job(Protocol):
    """What builds a job: a `ps.Environment`."""

    def job_graph(self) -> JobGraph:
        """Return the job as it is submitted."""


def write(
    uri: str, states: Mapping[tuple[str, str], pl.DataFrame | pl.LazyFrame | pa.Table], *, job: Job | JobGraph
) -> str:
    """Write a savepoint whose states are tables, and return its URI; `penstock run --from` starts the job from it.

    `states` maps (uid, state) to its rows, with the columns that `ps.snapshots.read` shows: key columns, `__namespace`
    (of windows and timers: the pane's start or the timer's time in microseconds; else it may be left out), value
    columns. Of a running aggregate and of a window these are the accumulators (`__rows`, `sum_amount`...), of a process
    function's value its fields. `job` (a `ps.Environment` with the job built on it) says what there must be: columns
    are cast to its types where nothing is lost. Every other state begins empty, sources begin at their start.

    Raises:
        UsageError: `uri` is not empty; the job has no such state; a column is missing, unknown or of another type; or
            two rows have one key.
        StorageError: `uri` cannot be written.
    """
    graph = with_states(job if isinstance(job, JobGraph) else job.job_graph())
    tables = _prepared(graph, states)
    target = open_target(uri)
    writer = SavepointWriter(target, target)
    subtasks = []
    for vertex in graph.vertices:
        own = [(uid, state) for uid, state in tables if any(o.uid == uid for o in vertex.operators)]
        for subtask in range(vertex.parallelism if own else 0):
            part = _Part(vertex, subtask, hash_range_of(subtask, vertex.parallelism, graph.settings.key_groups))
            keyed = tuple(_cut(writer, part, place, tables[place]) for place in own)
            subtasks.append(SubtaskSnapshot(vertex_id=vertex.id, subtask=subtask, keyed=keyed))
    run = f"{_ORIGIN}-{SystemRand().token(12)}"
    writer.manifest(
        Manifest(
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
            operators={o.uid: (v.parallelism, v.id) for v in graph.vertices for o in v.operators if o.stateful},
            subtasks=tuple(subtasks),
            barrier="savepoint",
            note=target.uri,
            origin=target.uri,
        )
    )
    return target.uri


class _Part:
    """One subtask of a vertex and the hashes it owns."""

    def __init__(self, vertex: JobVertex, subtask: int, hashes: HashRange) -> None:
        self.vertex, self.subtask, self.hashes = vertex, subtask, hashes


def _cut(
    writer: SavepointWriter, part: _Part, place: tuple[str, str], prepared: tuple[str, pa.Table]
) -> KeyedStateSnapshot:
    """Write the rows of one state that one subtask owns."""
    schema, table = prepared
    hashes = table.column(KEY_HASH).to_numpy()
    first = int(np.searchsorted(hashes, part.hashes.low, side="left"))
    stop = int(np.searchsorted(hashes, part.hashes.high, side="right"))
    state = KeyedStateSnapshot(
        uid=place[0], state=place[1], schema=schema, hash_low=part.hashes.low, hash_high=part.hashes.high
    )
    return writer.rows(state, iter([table.slice(first, stop - first)] if stop > first else []))


def _prepared(
    graph: JobGraph, states: Mapping[tuple[str, str], pl.DataFrame | pl.LazyFrame | pa.Table]
) -> dict[tuple[str, str], tuple[str, pa.Table]]:
    """Return each state's schema as text and its rows as columns of a segment, sorted by hash."""
    operators = {o.uid: o for vertex in graph.vertices for o in vertex.operators if o.states}
    found = {}
    for (uid, state), rows in states.items():
        operator = operators.get(uid)
        if operator is None:
            msg = f"snapshots.write: the job keeps no keyed state of uid {uid!r}"
            raise UsageError(msg, hint=near(uid, operators))
        if state not in operator.states:
            msg = f"snapshots.write: {uid!r} declares no state {state!r}"
            raise UsageError(msg, hint=near(state, operator.states))
        text = operator.states[state]
        found[uid, state] = text, _rows(operator, state, schema_from_text(text), _table(rows))
    return found


def _rows(operator: OperatorSpec, state: str, schema: pa.Schema, given: pa.Table) -> pa.Table:
    where = f"snapshots.write: {operator.uid}/{state}"
    named = [name for name in schema.names if name not in (KEY_HASH, DELETED, SEQ)]
    for name in given.column_names:
        if name not in named and name != KEY_HASH:
            raise UsageError(f"{where}: it has no column {name!r}", hint=near(name, named))
    rows = given.num_rows
    optional = NAMESPACE in named and operator.kind in _WITHOUT_NAMESPACE and not state.startswith(TIMERS)
    if optional and NAMESPACE not in given.column_names:
        given = given.append_column(NAMESPACE, pa.array(np.zeros(rows, np.int64)))
    columns: dict[str, Any] = {name: _column(given, schema.field(name), where) for name in named}
    for name in _never_null(operator, state, schema):
        if columns[name].null_count:
            raise UsageError(f"{where}: column {name!r} holds nulls", hint="fill them, or leave these rows out")
    batch = pa.table(columns).combine_chunks().to_batches(max_chunksize=max(1, rows))
    hashes = hash_columns(batch[0], key_names(schema)) if rows else np.empty(0, np.int64)
    columns |= {
        KEY_HASH: pa.array(hashes),
        DELETED: pa.array(np.zeros(rows, np.bool_)),
        SEQ: pa.array(np.arange(rows)),
    }
    table = pa.table([columns[name] for name in schema.names], schema=schema)
    _check_once(table, identity_of(schema), where)
    if operator.kind in _PROCESS_KINDS and operator.config.get("kinds", {}).get(state, {}).get("kind") == "list":
        table = _numbered(table, key_names(schema))
    return table.take(pa.array(np.argsort(hashes, kind="stable")))


def _column(given: pa.Table, field: pa.Field, where: str) -> pa.ChunkedArray:
    if field.name not in given.column_names:
        msg = f"{where}: the column {field.name!r} ({field.type}) is missing"
        raise UsageError(msg, hint=f"there are: {', '.join(given.column_names)}")
    column = given.column(field.name)
    try:
        cast = column.cast(field.type)
    except (pa.ArrowException, ValueError) as error:
        msg = f"{where}: column {field.name!r} of type {column.type} cannot be {field.type}: {error}"
        raise UsageError(msg, hint="cast it first, so that what is lost is your decision") from error
    return cast


def _never_null(operator: OperatorSpec, state: str, schema: pa.Schema) -> list[str]:
    """Return the columns of which every row has a value: a function's value, as it declares it, is nowhere None.

    A row without an index or map key would clear its key, one without the time of its last access has no age.
    """
    plain = [field.name for field in schema if not field.nullable and field.name not in (KEY_HASH, DELETED, SEQ)]
    plain += [*entry_names(schema), *([LAST_ACCESS] if LAST_ACCESS in schema.names else [])]
    text = operator.config.get("states", {}).get(state) if operator.kind in _PROCESS_KINDS else None
    if text is None:
        return plain
    values = [field.name for field in schema if field_id(field) > _LAST_FIXED_ID]
    return plain + [n for n, declared in zip(values, schema_from_text(text), strict=True) if not declared.nullable]


def _numbered(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return lists with their indices from 0 on, without gaps, in the order of those that were given."""
    frame = pl.from_arrow(table.select([*keys, ENTRY]))
    assert isinstance(frame, pl.DataFrame)  # noqa: S101 - of a table
    indices = frame.select((pl.col(ENTRY).rank("ordinal").over(list(keys)) - 1).cast(pl.Int64)).to_series()
    place = table.schema.get_field_index(ENTRY)
    return table.set_column(place, table.schema.field(place), indices.to_arrow())


def _check_once(table: pa.Table, identity: Sequence[str], where: str) -> None:
    """Refuse two rows of which only one would count."""
    frame = pl.from_arrow(table.select(list(identity)))
    assert isinstance(frame, pl.DataFrame)  # noqa: S101 - of a table
    twice = frame.filter(frame.is_duplicated())
    if twice.height:
        example = ", ".join(f"{name}={value!r}" for name, value in twice.row(0, named=True).items())
        msg = f"{where}: {twice.height} rows have no key of their own, such as {example}"
        raise UsageError(msg, hint="keep one row a key")


def _table(rows: Any) -> pa.Table:
    if isinstance(rows, pl.LazyFrame):
        rows = rows.collect()
    if isinstance(rows, pl.DataFrame):
        return rows.to_arrow()
    if isinstance(rows, pa.Table):
        return rows
    msg = f"snapshots.write: {type(rows).__name__} is no table"
    raise UsageError(msg, hint="give a Polars frame or a pyarrow.Table")
