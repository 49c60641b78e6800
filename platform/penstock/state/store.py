"""The keyed state of one operator of one subtask: opens, restores, freezes and compacts its tables.

It also adapts restored columns to the declared ones. Called by the task when it opens a chain.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import pyarrow.compute as pc

from penstock.core.errors import GraphError, StateMismatchError, StorageError
from penstock.core.evolution import (
    EVOLVES,
    conform_table,
    evolve_state,
    is_migrated,
    require_same_join,
    require_same_window,
)
from penstock.core.schema import schema_from_text
from penstock.state.cells.accumulators import PaneTableSpec
from penstock.state.log.arrival import PartialRestore
from penstock.state.log.frozen import CompactionJob, FrozenSource, FrozenTable
from penstock.state.log.row_spec import SESSION_TIMERS, TIMERS, RowSpec
from penstock.state.log.segment_columns import DELETED, StateSpec
from penstock.state.log.segment_file import SegmentFile
from penstock.state.log.segment_log import LogDelta, LogView, SegmentLog, log_delta, rows_in_clip
from penstock.state.log.segments import clip_of, merge_segments, read_visible, slices_of_keys
from penstock.state.log.ttl import TtlClock
from penstock.state.memory.budget import EvictionPolicy
from penstock.state.state_backend import StateBackend
from penstock.state.tables.collection_table import CollectionTable
from penstock.state.tables.join_buffer import JoinBuffer
from penstock.state.tables.pane_table import PaneTable
from penstock.state.tables.row_state import RowState
from penstock.state.tables.running_table import RunningTable
from penstock.state.tables.timer_table import TimerTable
from penstock.state.tables.value_table import ValueTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from penstock.core.clock import Clock
    from penstock.core.keygroup import HashRange
    from penstock.core.snapshot import FileRef, KeyedStateSnapshot, Segment, Tombstone
    from penstock.kernels.compiler.compile import I64
    from penstock.kernels.keys.key_columns import KeyColumns
    from penstock.state.keys.key_index import KeyCounts
    from penstock.state.log.arrival import ArrivingState
    from penstock.state.log.row_spec import Migration
    from penstock.state.log.ttl import Ttl
    from penstock.state.state_backend import KeyedStateRequest
    from penstock.state.tables.session_table import SessionRule, SessionTable
    from penstock.state.tiers.range_fetcher import BackgroundFetch

#: The timers of remote sessions; local ones have none.
_SESSION_TIMERS = TIMERS + SESSION_TIMERS
#: A restore decodes at most one part in this many of the managed memory at a time.
_DECODED_PART = 16
#: Freezes remembered until their checkpoint is known to be complete.
_MAX_OPEN_VIEWS = 64
#: Hot rows of a table with a cold file may take one part in this many of its share.
_FILE_PART = 3


class StateTable(Protocol):
    """The interface of every state of a store."""

    @property
    def source(self) -> FrozenSource[StateSpec]:
        """The state's names, its log and its spec."""

    def freeze(self) -> FrozenTable:
        """Freeze the table."""

    def load(self, table: pa.Table) -> None:
        """Add restored rows, newest last."""

    def look_up(self, keys: KeyColumns, hashes: I64, most: int) -> pa.Table:
        """Return at most `most` live rows of the single given key as columns of a segment; changes no state."""

    def counts(self) -> KeyCounts:
        """Return the number of rows of every key in memory."""

    @property
    def hot_bytes(self) -> int:
        """The bytes of rows in memory, without those that wait for an upload."""


#: Tables of which rows are hidden by their namespace; they have `hide_loaded`.
_Hiding = PaneTable | JoinBuffer | TimerTable
TableT = TypeVar("TableT", bound=StateTable)
SpecT = TypeVar("SpecT", bound=StateSpec)


def no_pause() -> None:
    """Load state as fast as possible."""


class KeyedState:
    """The tables of one operator."""

    def __init__(self, request: KeyedStateRequest) -> None:
        """Prepare; a state is read when it is declared."""
        self._request = request
        self._tables: dict[str, StateTable] = {}
        self._rows: RowState | None = None
        self._cold = StateBackend(request)
        self._views: dict[int, list[tuple[SegmentLog, LogView]]] = {}
        #: The restore of a table during which rows are processed.
        self.restore: PartialRestore | None = None
        #: Tables that were loaded before their operator was opened, until it declares them.
        self._loaded: dict[str, StateTable] = {}
        self._ttl_clock: TtlClock | None = None

    def ttl_clock(self, clock: Clock) -> TtlClock:
        """Return the time of rows with a time-to-live, at the time of `clock`; all operators of the state share it."""
        self._ttl_clock = self._ttl_clock or TtlClock(clock)
        self._ttl_clock.tick()
        return self._ttl_clock

    def pane_table(self, name: str, spec: PaneTableSpec) -> PaneTable:
        """Declare a table and restore it.

        Raises:
            GraphError: declared twice.
            StateMismatchError: the snapshot's columns differ from the spec's.
            PenstockError: it does not fit the managed memory (hashmap backend).
        """
        rows, cold = self._pane_state(spec), self._cold
        return rows.panes(name, spec, lambda source: PaneTable(source, rows, cold.rows(source)))

    def running_table(self, name: str, spec: PaneTableSpec, ttl: Ttl | None = None) -> RunningTable:
        """Declare a table without windows and restore it; `ttl` is given if the spec says that rows expire."""
        rows, cold = self._pane_state(spec), self._cold
        return rows.panes(name, spec, lambda source: RunningTable(source, rows, cold.rows(source), ttl))

    def _pane_state(self, spec: PaneTableSpec) -> RowState:
        """Return the keys of a table of panes, which evicts them to its store."""
        limits, in_file = self._request.limits, self._cold.fits_file(spec)
        policy = self._policy()
        policy.row_bytes = spec.width * 8
        if not spec.value_words:  # they need the same again while they are moved
            policy.borrows, policy.hot_part = True, 1
        if in_file:
            # a table in a file gets less memory: its frozen rows and an eviction take as much again each; and it evicts
            # more at a time, because a large eviction reads and writes less of the file per key
            policy.hot_part, policy.limits = _FILE_PART, limits.changed(kept_keys_part=limits.kept_rows_part)
        return self._new_rows(lambda: RowState(spec.key_schema, policy, self._declare, small=in_file))

    def session_table(self, name: str, spec: PaneTableSpec, rule: SessionRule) -> SessionTable:
        """Declare a table of sessions and restore it; with the rocksdb backend full memory evicts keys.

        With the remote backend keys are fetched when they are used or due. Raises as `pane_table`.
        """
        table = self.row_state(spec.key_schema, evictable=True).sessions(name, spec, rule)
        self._tables[_SESSION_TIMERS] = self._tables.pop(_SESSION_TIMERS)  # a freeze of the sessions registers timers
        return table

    def row_state(self, key_schema: pa.Schema, *, evictable: bool = False) -> RowState:
        """Declare the row path's state: values and timers with a shared key index, restored when declared.

        With `evictable`, full memory evicts keys (rocksdb), or keys are fetched on use (remote).

        Raises:
            GraphError: declared twice.
            UsageError: the backend's library is not installed.
        """

        def made() -> RowState:
            cold = self._cold.keys() if evictable else None
            return RowState(key_schema, self._policy(), self._declare, cold=cold, runs=self._cold.runs())

        return self._new_rows(made)

    def _policy(self) -> EvictionPolicy:
        request = self._request
        return EvictionPolicy(request.budget, f"{request.writer}/{request.uid}", request.limits)

    def _new_rows(self, make: Callable[[], RowState]) -> RowState:
        """Return the tables' keys, made once; those of loaded tables exist already."""
        if self._rows is None:
            self._rows = make()
        elif not self._loaded:
            raise GraphError(f"the state of {self._request.uid} is declared twice", hint="declare it once, in open")
        return self._rows

    @property
    def uid(self) -> str:
        """The operator's uid."""
        return self._request.uid

    @property
    def tables(self) -> Mapping[str, StateTable]:
        """The declared states by name."""
        return self._tables

    def declared(self) -> dict[str, pa.Schema]:
        """Return the columns of every declared state by its name."""
        specs = {name: table.source.spec for name, table in self._tables.items()}
        return {
            name: spec.declared_schema if isinstance(spec, RowSpec) else spec.segment_schema
            for name, spec in specs.items()
        }

    @property
    def advances(self) -> bool:
        """Whether a later checkpoint can be added: no state is remote or migrated."""
        sources = {name: table.source for name, table in self._tables.items()}
        return not any(s.remote or migration_of(self._saved(name), s.spec) for name, s in sources.items())

    def advance(self, snapshots: tuple[KeyedStateSnapshot, ...], pause: Callable[[], None] = no_pause) -> bool:
        """Load what a later checkpoint adds to the restored tables, which another operator of the same kind declares.

        Call it before any row was processed. `pause` is called after each piece of rows. False: the state has to be
        restored as a whole, and this one closed.

        Raises:
            PenstockError: as the declarations.
        """
        deltas = {name: self._delta(name, table, snapshots) for name, table in self._tables.items()}
        if not self.advances or any(delta is None for delta in deltas.values()):
            return False
        self._request = dataclasses.replace(self._request, snapshots=snapshots)
        for name, table in self._tables.items():
            delta, log = deltas[name], table.source.log
            assert delta is not None  # noqa: S101 - looked at above
            if delta.hidden_to is not None and isinstance(table, _Hiding) and name != _SESSION_TIMERS:
                table.hide_loaded(delta.hidden_to)
            log.restore(*_segments_of(self._saved(name)))
            added = set(delta.segments)
            segments = [segment for segment in log.durable if segment in added]
            if name == _SESSION_TIMERS:
                continue
            self._restore(table, segments, log.tombstones, None, pause)
        self._loaded = dict(self._tables)
        return True

    def _delta(self, name: str, table: StateTable, snapshots: tuple[KeyedStateSnapshot, ...]) -> LogDelta | None:
        """Return what the snapshots add to a restored table; None: it cannot be added."""
        after = [one for one in snapshots if one.uid == self._request.uid and one.state == name]
        delta = log_delta(self._saved(name), after)
        return delta if delta is None or delta.hidden_to is None or isinstance(table, _Hiding) else None

    def _saved(self, name: str) -> list[KeyedStateSnapshot]:
        """Return the restored snapshots of one state."""
        return [one for one in self._request.snapshots if one.uid == self._request.uid and one.state == name]

    def check_all_declared(self) -> None:
        """Check that every state of the snapshot was declared.

        Raises:
            StateMismatchError: one was not: it would be lost.
        """
        request = self._request
        for snapshot in request.snapshots:
            if snapshot.uid == request.uid and snapshot.state not in self._tables and snapshot.segments:
                declared = ", ".join(self._tables)
                raise StateMismatchError(
                    f"the snapshot of {request.uid} has the state {snapshot.state!r}, the job declares {declared}",
                    hint="declare it again, give the operator a new uid, or start with --fresh",
                )

    def freeze(self, checkpoint_id: int | None = None) -> tuple[FrozenTable, ...]:
        """Freeze every table; with an id, `completed` can later mark its content as committed."""
        if self._rows is not None:
            self._rows.sweep(self._request.limits.freeze_sweep_keys)
        frozen: tuple[FrozenTable, ...] = tuple(table.freeze() for table in self._tables.values())
        if checkpoint_id is not None:
            logs = [table.source.log for table in self._tables.values()]
            self._views[checkpoint_id] = [(log, f.view) for log, f in zip(logs, frozen, strict=True)]
            while len(self._views) > _MAX_OPEN_VIEWS:
                del self._views[min(self._views)]
        return frozen

    def completed(self, checkpoint_id: int) -> None:
        """Record that the checkpoint is complete: its segments may be compacted."""
        for known in sorted(c for c in self._views if c <= checkpoint_id):
            views = self._views.pop(known)
            if known == checkpoint_id:
                for log, view in views:
                    log.completed(view)

    def compaction(self) -> CompactionJob | None:
        """Return a compaction for the background when a tier of a log is full."""
        for table in self._tables.values():
            work = table.source.log.compaction()
            if work is not None:
                return CompactionJob(table.source, *work)
        return None

    def compacted(self, job: CompactionJob, file: FileRef | None) -> None:
        """Replace the inputs by the merged segment; None: abandoned, it will be offered again."""
        log = self._tables[job.state].source.log
        if file is None or job.result is None:
            log.compacted(job.inputs, None)
        else:
            log.compacted(job.inputs, job.result.stored(file, self._request.writer))

    def prefetch(self) -> BackgroundFetch[Any] | None:
        """Return the next prefetch from the object store for the background."""
        return next((job for fetcher in self._cold.remote if (job := fetcher.next_fetch()) is not None), None)

    @property
    def memory_bytes(self) -> int:
        """The managed bytes held by all tables."""
        rows = 0 if self._rows is None else self._rows.index_bytes
        return rows + sum(map(bytes_of, self._tables.values()))

    def finish_restore(self, arriving: ArrivingState | None = None) -> None:
        """Load all that rows do not wait for, and remove what has expired; call it when the operator starts work.

        `arriving`: the state that the rows of the chain's first operator wait for.
        """
        if self.restore is not None and self.restore is not arriving:
            self.restore.load_rest()
        if self._rows is not None:
            self._rows.sweep()

    def close(self) -> None:
        """Free memory and local files; idempotent."""
        for table in self._tables.values():
            if isinstance(table, PaneTable | JoinBuffer):
                table.close()
            table.source.clear()
        if self._rows is not None:
            self._rows.close()
        self._cold.close()
        self._tables = {}

    def _declare(self, name: str, spec: SpecT, make: Callable[[FrozenSource[SpecT]], TableT]) -> TableT:
        """Create a table and load its saved rows; `source.spec` is the fitted spec."""
        request = self._request
        if name in self._loaded:
            return cast("TableT", self._loaded.pop(name))
        if name in self._tables:
            raise GraphError(f"state {name!r} of {request.uid} is declared twice", hint="declare it once, in open")
        mine = self._saved(name)
        migration = migration_of(mine, spec)
        for snapshot in mine if migration is None else ():
            spec = fitted(snapshot, spec)
        saved = SegmentLog(request.hash_range, limits=request.limits)
        saved.restore(*_segments_of(mine))
        log = saved if migration is None else SegmentLog(request.hash_range, limits=request.limits)
        table = make(FrozenSource((request.uid, name, request.writer), spec, log, request.directory))
        self._tables[name] = table
        if migration is not None and table.source.remote:
            msg = f"state {name!r} of {request.uid} has a migration function, which has to read all values"
            raise StateMismatchError(msg, hint="restore once with state_backend='rocksdb', then return to 'remote'")
        if not table.source.remote and name != _SESSION_TIMERS:  # otherwise its rows are fetched on demand
            self._restore(table, saved.durable, saved.tombstones, migration)
        return table

    def _restore(
        self,
        table: StateTable,
        segments: list[Segment],
        tombstones: tuple[Tombstone, ...],
        migration: tuple[Migration, pa.Schema] | None,
        pause: Callable[[], None] = no_pause,
    ) -> None:
        """Load segments oldest first, so that newer rows overwrite older ones, a few row groups at a time.

        Values to migrate, and lists and maps, are merged first: then each key comes once, with all of its rows in them.
        """
        request, schema = self._request, table.source.spec.segment_schema
        most_bytes = min(request.limits.decoded_bytes, request.budget.limit_bytes // _DECODED_PART)
        within, limits = request.hash_range, request.limits.changed(decoded_bytes=most_bytes)
        clipped = (segment for segment in segments if clip_of(segment, within) is not None)
        files = (SegmentFile(segment, request.read, limits) for segment in clipped)
        if isinstance(table, PaneTable):
            self._restore_panes(table, list(files), tombstones, pause)
            return
        if migration is None and not isinstance(table, CollectionTable):
            for file in files:
                for rows in read_visible(file, tombstones, within):
                    table.load(conform_table(rows, schema))
                    pause()
            return
        assert isinstance(table, CollectionTable | ValueTable)  # noqa: S101 - no other state has a migration
        saved = schema if migration is None else migration[1]
        most = min(limits.encoded_rows, self._policy().batch_rows)
        for merged in merge_segments(list(files), tombstones, saved, within=within, keep_deleted=True):
            for rows in slices_of_keys(merged, most):
                if migration is None:
                    table.load(rows)
                    pause()
                else:
                    migrated = migration[0].rows(rows, schema)
                    table.load(migrated.filter(pc.invert(migrated[DELETED])), unsaved=True)

    def _restore_panes(
        self,
        table: PaneTable,
        files: list[SegmentFile],
        tombstones: tuple[Tombstone, ...],
        pause: Callable[[], None],
    ) -> None:
        """Load the segments of a table of panes, or begin to load them in parts."""
        table.expect(table.source.log.keys)
        loads = list(_pane_loads(table, files))
        schema = table.source.spec.segment_schema

        def load_part(part: HashRange) -> None:
            for file, load in zip(files, loads, strict=True):
                for rows in read_visible(file, tombstones, part):
                    load(conform_table(rows, schema))
                    pause()

        request, rows = self._request, sum(rows_in_clip(file.segment) for file in files)
        large = rows > request.limits.restored_at_once_rows
        if request.in_parts and large and table.loads_in_parts and self.restore is None:
            parts = rows // request.limits.loaded_rows
            self.restore = table.source.restore = PartialRestore(request.hash_range, parts, load_part)
        else:
            load_part(request.hash_range)


def _pane_loads(table: PaneTable, files: Sequence[SegmentFile]) -> Iterator[Callable[[pa.Table], None]]:
    """Yield the function that loads each segment, oldest first: into the cold file only below rows in memory."""
    direct = True
    for file in files:
        load = table.loader(rows_in_clip(file.segment)) if direct else table.load
        direct = load != table.load
        yield load


def _segments_of(snapshots: Iterable[KeyedStateSnapshot]) -> tuple[list[Segment], list[Tombstone]]:
    parts = list(snapshots)
    return [g for s in parts for g in s.segments], [t for s in parts for t in s.tombstones]


def bytes_of(table: StateTable) -> int:
    """Return the managed bytes of a table, also those that wait for an upload."""
    return table.hot_bytes + table.source.memory_bytes


def open_keyed_state(request: KeyedStateRequest) -> KeyedState:
    """Return the keyed state of one operator; declaring its tables restores them."""
    return KeyedState(request)


def close_stores(stores: Iterable[KeyedState]) -> list[Exception]:
    """Close all stores, even if some raise; return the raised errors."""
    errors: list[Exception] = []
    for store in stores:
        try:
            store.close()
        except (OSError, StorageError) as error:
            errors.append(error)
    return errors


def migration_of(snapshots: list[KeyedStateSnapshot], spec: StateSpec) -> tuple[Migration, pa.Schema] | None:
    """Return the migration registered for the columns of the snapshots, and these columns, if there is one."""
    migration = spec.migration if isinstance(spec, RowSpec) else None
    if migration is None or not snapshots:
        return None
    saved = schema_from_text(snapshots[0].schema)
    return (migration, saved) if is_migrated(saved, spec.segment_schema, migration.was) else None


def fitted(snapshot: KeyedStateSnapshot, spec: SpecT) -> SpecT:
    """Return the spec with the field ids of the snapshot's columns.

    Raises:
        StateMismatchError: rows of these columns cannot become those of the spec.
    """
    saved, wanted = schema_from_text(snapshot.schema), spec.segment_schema
    if isinstance(spec, RowSpec | PaneTableSpec) and EVOLVES in (wanted.metadata or {}):
        try:
            found = evolve_state(saved, wanted)
        except StateMismatchError as error:
            msg = f"state {snapshot.state!r} of {snapshot.uid}: {error.message}"
            raise StateMismatchError(msg, hint=error.hint or "give the operator a new uid") from error
        return dataclasses.replace(spec, evolution=found)
    if saved.names != wanted.names or saved.types != wanted.types:
        ours = ", ".join(f"{f.name} {f.type}" for f in wanted)
        theirs = ", ".join(f"{f.name} {f.type}" for f in saved)
        raise StateMismatchError(
            f"state {snapshot.state!r} of {snapshot.uid} was saved with columns ({theirs}), the job keeps ({ours})",
            hint="keep keys, aggregates and state types as they were, give a new uid, or start with --fresh",
        )
    try:
        require_same_join(saved, wanted)
        require_same_window(saved, wanted)
    except StateMismatchError as error:
        raise StateMismatchError(
            f"state {snapshot.state!r} of {snapshot.uid}: {error.message}", hint=error.hint
        ) from error
    return spec
