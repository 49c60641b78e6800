"""`RowState`: all keyed state of one operator; its tables share one key index and one eviction of keys.

The operator finds the slots of a batch's keys once (`upsert`, `distinct`), then reads and writes every state by slot.
Memory is counted in `settle`, which drops keys without state. With a cold store, full memory evicts the least recently
used keys with all their state. Keys of a batch that are new to the index are loaded from the store before the operator
receives their slots; cells of panes are loaded when they are first written. Full memory also spills rows of joins to
files. Owned by one thread.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.kernels.rows.row_order import hash_order, number_slots
from penstock.state.cells.accumulators import PaneTableSpec
from penstock.state.keys.key_index import KeyIndex, columns_of
from penstock.state.keys.sorted_keys import decode_keys
from penstock.state.log.row_spec import SESSION_TIMERS, TIMERS, RowSpec
from penstock.state.log.segment_columns import LAST_ACCESS
from penstock.state.memory.budget import EvictionPolicy
from penstock.state.memory.slot_arrays import pieces, renumbering, with_room
from penstock.state.tables.collection_table import CollectionTable
from penstock.state.tables.join_buffer import JoinBuffer
from penstock.state.tables.pane_table import PaneTable
from penstock.state.tables.running_table import RunningTable
from penstock.state.tables.session_table import SessionTable
from penstock.state.tables.timer_table import TimerTable
from penstock.state.tables.value_table import ValueTable
from penstock.state.tiers.cold_records import RowPacker

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.core.keygroup import HashRange
    from penstock.kernels.compiler.compile import I32, I64
    from penstock.kernels.keys.key_columns import KeyColumns
    from penstock.state.keys.key_index import KeyView
    from penstock.state.log.frozen import FrozenSource
    from penstock.state.log.row_spec import Migration
    from penstock.state.log.ttl import Ttl
    from penstock.state.tables.collection_table import EntryCodec
    from penstock.state.tables.session_table import SessionRule
    from penstock.state.tiers.cold_records import KeyRows, SpillStore
    from penstock.state.tiers.join_runs import RunFiles
    from penstock.state.tiers.range_fetcher import RangeFetcher
    from penstock.state.tiers.remote_runs import RemoteRuns

#: A sweep of lists and maps for expired rows checks one key in this many: looking at one takes longer than at a value.
_SWEEP_PART = 8
#: Most restored keys that are loaded together.
_LOADED = 65_536
#: Rows of joins are not spilled while they take less than one part in this many of the limit.
_LEAST_PART = 8
#: Rows read from files together, and files of a merge, take about one part in this many of the share.
_TOGETHER = 16

#: Registers a table in the store under a name, and restores it.
Declare: TypeAlias = Callable[[str, Any, Callable[["FrozenSource[Any]"], Any]], Any]
_TableT = TypeVar("_TableT")
_PanesT = TypeVar("_PanesT", bound=PaneTable)
_SpecT = TypeVar("_SpecT", RowSpec, PaneTableSpec)
#: A table whose rows are a part of their key's record when the key is evicted.
RowTable: TypeAlias = ValueTable | CollectionTable | SessionTable
#: A table whose keys can be evicted: every table except the rows of a join.
ColdTable: TypeAlias = RowTable | TimerTable | PaneTable


class RowState:
    """The keys, state and timers of one operator of one subtask."""

    def __init__(
        self,
        key_schema: pa.Schema,
        policy: EvictionPolicy,
        declare: Declare,
        *,
        cold: SpillStore | None = None,
        runs: tuple[RunFiles | None, RemoteRuns | None] = (None, None),
        small: bool = False,
    ) -> None:
        """Start without state; `policy` has the budget, the name of the holder and the limits.

        Without `cold` all keys stay in memory, except those of panes with a cold store; without `runs` all rows of
        joins. `small`: see `KeyIndex`.
        """
        self.cold = cold
        #: Whether full memory evicts keys.
        self.evicts = cold is not None
        self.policy = policy
        self._limits = policy.limits
        self.index = KeyIndex(key_schema, small=small)
        self._holder = policy.holder
        self._budget = policy.budget
        self._declare = declare
        self._run_files, self.remote_runs = runs
        #: Whether eviction is suspended.
        self.keeps_all = False
        #: Those whose rows are in the records of evicted keys, by number.
        self._row_tables: list[RowTable] = []
        self._timer_tables: list[TimerTable] = []
        self._pane_tables: list[PaneTable] = []
        self._join_buffers: list[JoinBuffer] = []
        self._numbers: I32 = np.zeros(0, np.int32)
        self._swept = 0
        #: Whether rows of a table expire.
        self._expires = False
        #: Of each slot, whether a cold store may have rows of the key, and whether its record is out of date.
        self.stored, self._changed = np.zeros(0, np.bool_), np.zeros(0, np.bool_)

    # --- declarations -----------------------------------------------------------------------------------------------

    def value(
        self, name: str, values: tuple[pa.Field, ...], ttl: Ttl | None = None, migration: Migration | None = None
    ) -> ValueTable:
        """Declare a value by key; it is restored when this returns, with expired rows."""
        named = self._named(migration)
        declared = RowSpec(self.index.schema, values, ttl=ttl is not None, evolves=True, migration=named)
        return self._added(name, declared, lambda source: ValueTable(source, self, ttl), self._row_tables.append)

    def entries(
        self,
        name: str,
        fields: tuple[tuple[pa.Field, ...], tuple[pa.Field, ...]],
        codec: EntryCodec,
        ttl: Ttl | None = None,
        migration: Migration | None = None,
        *,
        lists: bool = False,
    ) -> CollectionTable:
        """Declare a list (whose one entry column is the index) or a map by key; it is restored when this returns.

        `fields` are the entry columns and the value's.
        """
        entries, values = fields
        declared = RowSpec(self.index.schema, values, entries, ttl is not None, migration=self._named(migration))
        add = self._row_tables.append
        return self._added(name, declared, lambda source: CollectionTable(source, self, codec, ttl, lists=lists), add)

    def windows(
        self, name: str, fields: tuple[tuple[pa.Field, ...], tuple[pa.Field, ...]], codec: EntryCodec, shown: str
    ) -> CollectionTable:
        """Declare a map, as `entries` does, by windows of the definition `shown`; a restore needs the same one."""
        entries, values = fields
        declared = RowSpec(self.index.schema, values, entries, window=shown)
        add = self._row_tables.append
        return self._added(name, declared, lambda source: CollectionTable(source, self, codec, lists=False), add)

    def _named(self, migration: Migration | None) -> Migration | None:
        """Return a migration with its column names in a segment: the name of a key column gets an underscore."""
        if migration is None:
            return None
        was = RowSpec(self.index.schema, tuple(migration.was))
        renamed = pa.schema(list(zip(was.value_names, migration.was.types, strict=True)))
        return dataclasses.replace(migration, was=renamed)

    def timers(self, name: str) -> TimerTable:
        """Declare timers by key; they are restored when this returns."""
        declared, add = RowSpec(self.index.schema), self._timer_tables.append
        return self._added(TIMERS + name, declared, lambda source: TimerTable(source, self), add)

    def sessions(self, name: str, spec: PaneTableSpec, rule: SessionRule) -> SessionTable:
        """Declare sessions by key, after the timers of those that leave memory; they are restored when this returns."""
        timers, add = self.timers(SESSION_TIMERS), self._row_tables.append
        if not timers.source.remote:  # all keys are loaded
            timers.discard_saved()
        return self._added(name, spec, lambda source: SessionTable(source, self, timers, rule), add)

    def panes(self, name: str, spec: PaneTableSpec, make: Callable[[FrozenSource[PaneTableSpec]], _PanesT]) -> _PanesT:
        """Declare cells by key and pane, beyond memory in their store; they are restored when this returns."""

        def add(table: _PanesT) -> None:
            self._pane_tables.append(table)
            self.evicts = table.cold is not None

        return self._added(name, spec, make, add)

    def join_buffer(
        self, name: str, values: tuple[pa.Field, ...], join: tuple[tuple[bytes, bytes], ...] = ()
    ) -> JoinBuffer:
        """Declare join rows by key and time (see `core.evolution`); they are restored when this returns."""
        declared, stores = RowSpec(self.index.schema, values, join=join), (self._run_files, self.remote_runs)
        add = self._join_buffers.append
        return self._added(name, declared, lambda source: JoinBuffer(source, self, *stores), add)

    def _added(
        self, name: str, spec: _SpecT, make: Callable[[FrozenSource[_SpecT]], _TableT], add: Callable[[_TableT], None]
    ) -> _TableT:
        """Declare a table and restore it; it is added before, since a restore may evict keys."""

        def added(source: FrozenSource[_SpecT]) -> _TableT:
            table = make(source)
            add(table)
            self._expires = self._expires or source.ttl is not None
            return table

        made: _TableT = self._declare(name, spec, added)
        return made

    # --- keys -------------------------------------------------------------------------------------------------------

    def upsert(self, keys: KeyColumns, hashes: I64) -> I32:
        """Return the slot of every row, created if the key is new; the next call reuses the array."""
        known = self.index.count
        slots = self.index.upsert(keys, hashes)
        if self.evicts:
            self.policy.lru.touch(slots, self.index.count)
            if self.index.count > known:
                self._load(known)
        return slots

    def _load(self, first: int) -> None:
        """Load the records of new keys, the slots from `first` on; cells of panes are loaded on demand."""
        self.stored = with_room(self.stored, self.index.count)
        self.stored[first : self.index.count] = any(table.has_cold for table in self._pane_tables)
        if self.cold is None:
            return
        self._changed = with_room(self._changed, self.index.count)
        for loaded, parts in self.cold.load(self.index.view(), np.arange(first, self.index.count, dtype=np.int32)):
            self.stored[loaded] = True
            for table, own in zip(self._row_tables, parts, strict=True):
                table.load_parts(loaded, own)

    def register(
        self,
        source: FrozenSource[Any],
        types: Sequence[pa.DataType] | None = None,
        columns: Callable[[pa.RecordBatch], list[pa.Array]] | None = None,
    ) -> RowPacker:
        """Add a state whose rows are a part of their key's record; return the packer of the part.

        Rows have the same columns in records as in segments, or columns of `types`, which `columns` makes from those.
        """
        found = [field.type for field in source.spec.row_fields] if types is None else types
        return RowPacker(found) if self.cold is None else self.cold.add(found, source, columns)

    def evicted_rows(self, keys: KeyView, slots: I32, packer: RowPacker) -> KeyRows | None:
        """Return one part of the record of a single key that is not in memory; None: it has none."""
        return None if self.cold is None else self.cold.look_up(keys, slots, packer)

    def find(self, keys: KeyColumns, hashes: I64) -> tuple[KeyView, I32, bool]:
        """Return a single key as a slot of a view, and whether it is in memory; it is not loaded."""
        found = self.index.find(keys, hashes)
        if len(found):
            return self.index.view(), found, True
        lookup_index = KeyIndex(self.index.schema)
        slots = lookup_index.upsert(keys, hashes).copy()
        return lookup_index.view(), slots, False

    def live_rows(
        self,
        source: FrozenSource[RowSpec],
        packer: RowPacker,
        key: tuple[KeyColumns, I64],
        most: int,
        rows_at: Callable[[I32], KeyRows],
    ) -> pa.Table:
        """Return the first `most` rows of a single key that have not expired, as columns of a segment.

        `rows_at` returns the rows of a key in memory, `packer` has those of an evicted one.
        """
        view, slots, in_memory = self.find(*key)
        rows, spec = rows_at(slots) if in_memory else self.evicted_rows(view, slots, packer), source.spec
        if rows is None or not rows.counts.any():
            return spec.segment_schema.empty_table()
        found = pa.table(rows.columns, names=list(spec.row_names))
        if source.deadline is not None:
            found = found.filter(pc.field(LAST_ACCESS) > source.deadline)
        found = found.slice(0, most)
        return spec.rows_of_key((view, slots), dict(zip(spec.row_names, found.columns, strict=True)), found.num_rows)

    def note_changed(self, slots: I32) -> None:
        """Record that rows of slots were changed: the records of their keys in the cold store are out of date."""
        if self.cold is not None:
            self._changed[slots] = True

    @property
    def fetcher(self) -> RangeFetcher[Any] | None:
        """Fetches keys from the object store; None: they are in memory or on the local disk."""
        return None if self.cold is None else self.cold.fetcher

    def most_keys(self, most: int) -> int:
        """Return how many keys, at most `most`, may enter memory before the next `settle`."""
        return self.policy.most_incoming(most)

    def distinct(self, slots: I32) -> tuple[I32, I32]:
        """Return each row's number among the distinct slots, and these slots, in order of first appearance."""
        self._numbers = with_room(self._numbers, self.index.count)
        local, found = np.empty(len(slots), np.int32), np.empty(len(slots), np.int32)
        count = number_slots(slots, self._numbers, local, found)
        if self.cold is not None:
            self.policy.lru.touch(found[:count], self.index.count)
        return local, found[:count]

    def every_key(self) -> Iterator[I32]:
        """Yield the slots of all restored keys, local or in the object store, in batches.

        No key may have been evicted before; call `settle` between two batches.
        """
        if self.cold is None or self.fetcher is None:
            yield np.arange(self.index.count, dtype=np.int32)
            return
        for keys, hashes in self.cold.every_key():
            index = KeyIndex(self.index.schema)
            index.upsert(keys, hashes)
            view, distinct = index.view(), np.arange(index.count, dtype=np.int32)
            for piece in pieces(distinct, self.most_keys(_LOADED)):
                yield np.unique(self.upsert(columns_of(view, piece), view.hashes[piece]))

    def keys(self, slots: I32) -> list[pa.Array]:
        """Return the key columns of slots."""
        return self.index.view().gather(slots)

    # --- memory -----------------------------------------------------------------------------------------------------

    @property
    def hot_bytes(self) -> int:
        """The bytes of keys, state and timers in memory."""
        return self.key_bytes + sum(table.hot_bytes for table in self._join_buffers)

    @property
    def key_bytes(self) -> int:
        """The bytes without the rows of joins."""
        return self.index_bytes + self.slot_bytes + sum(table.hot_bytes for table in self._cold_tables)

    @property
    def index_bytes(self) -> int:
        """The bytes of the keys, unless a table counts them."""
        return 0 if self._pane_tables else self.index.memory_bytes

    @property
    def slot_bytes(self) -> int:
        """The bytes of arrays by slot that belong to no table."""
        return int(self._numbers.nbytes + self.stored.nbytes + self._changed.nbytes) + self.policy.lru.nbytes

    @property
    def _tables(self) -> tuple[ColdTable | JoinBuffer, ...]:
        return (*self._cold_tables, *self._join_buffers)

    @property
    def _cold_tables(self) -> tuple[ColdTable, ...]:
        """The tables whose keys can be evicted."""
        return (*self._row_tables, *self._timer_tables, *self._pane_tables)

    def settle(self) -> None:
        """Count memory after a batch; slots may be renumbered by this call.

        Raises:
            StateTooLargeError: the state does not fit the managed memory.
        """
        self.sweep(self._limits.sweep_keys)
        if not self._pane_tables and self.policy.should_find_dead(self.index.count):  # those look when panes go
            self.drop_dead_keys()
        self._make_room()
        over = self._budget.exceeded
        for reduce in (self._compact, self.index.dense.disable) if over and not self.evicts else ():
            if over and reduce():
                self.report()
                over = self._budget.exceeded
        if over and (not self.evicts or self._join_buffers):
            more = "; with state_backend=rocksdb the keys of process functions and of windows, and the rows of a join, "
            raise self._budget.error(f"the state of {self._holder.rpartition('/')[2]}", f"{more}can exceed memory")

    def settle_load(self) -> None:
        """Count memory after a part of a restore; slots may be renumbered by this call."""
        if self.cold is not None or self._run_files is not None:
            self._make_room()

    def report(self) -> None:
        """Report the memory in use."""
        self._budget.report(self._holder, self.hot_bytes)

    def close(self) -> None:
        """Report the memory as free."""
        self._budget.report(self._holder, 0)
        self._budget.work(f"{self._holder}/waiting", 0)

    def _make_room(self) -> None:
        """Evict keys down to the limit, report the usage, and spill join rows."""
        if self.evicts and not self.keeps_all and self.policy.full(self.key_bytes, self.index.count):
            for rows in self._join_buffers:
                rows.spill()
            if not self._pack():
                self.evict_keys()
        self.report()
        if self._run_files is not None and self._join_buffers:
            self._spill()

    def _pack(self) -> bool:
        """Replace lists and maps by their parts while memory is full: those used least recently, then all.

        Of panes, drop the values that no cell refers to. Return whether memory has room then.
        """
        if self._compact():  # reads every cell: not again soon
            return not self.policy.full(2 * self.key_bytes, self.index.count)
        tables = [table for table in self._row_tables if isinstance(table, CollectionTable)]
        for choose in (self.policy.lru.oldest_half, np.asarray):
            objects = np.zeros(self.index.count, np.bool_)
            for table in tables:
                objects |= table.objects[: self.index.count]
            slots = choose(np.flatnonzero(objects).astype(np.int32))
            for table in tables:  # at the same time in all: the objects of windows refer to each other
                table.pack(slots)
            if not self.policy.full(self.key_bytes, self.index.count):
                return True
        return False

    def _compact(self) -> bool:
        """Drop the values that no cell of a pane refers to; return whether cells may have any."""
        found = [table.compact() for table in self._cold_tables if isinstance(table, PaneTable)]
        return any(found)

    def evict_keys(self) -> None:
        """Evict keys, until memory is not full; their unsaved changes are gathered first."""
        for table in self._row_tables:
            table.source.gather(table.unsaved(), self.policy.gathered_bytes)
        held, keys = self.key_bytes, -1
        while self.index.count not in (0, keys):
            before, keys = held, self.index.count
            self._evict(held)
            held = self.key_bytes
            self.policy.record_evicted(keys - self.index.count, before - held)
            if not self.policy.full(held, self.index.count):
                break
        waiting = sum(table.source.memory_bytes for table in (*self._row_tables, *self._timer_tables))
        self._budget.work(f"{self._holder}/waiting", waiting)

    def _spill(self) -> None:
        """Spill join rows to local files before memory is full, and continue merging files."""
        full = self._limits.spill_part * self._budget.share_of(self._holder)
        rows = sum(table.hot_bytes for table in self._join_buffers)
        # keys alone may fill memory: then wait until the rows fill files of a reasonable size
        if (self.hot_bytes > full and rows >= full / _LEAST_PART) or self._budget.exceeded:
            for table in self._join_buffers:
                table.spill(self._limits.spilled_bytes)
            self.report()
        for table in self._join_buffers:
            table.merge_some(self._together)
            table.release()
        if (remote := self.remote_runs) is not None:
            own = sum(table.own_bytes for table in self._join_buffers)
            forgot = [table.forget_durable() for table in self._join_buffers] if 2 * own > remote.limit_bytes else []
            if any(forgot):
                remote.drop_local()

    @property
    def _together(self) -> int:
        return max(self._limits.spilled_bytes, self._budget.share_of(self._holder) // _TOGETHER, 1)

    def parts(self, low: int, high: int) -> list[HashRange]:
        """Return hash ranges for which the join rows between two times (inclusive) are loaded together.

        Call `settle` between two of them.
        """
        owned = next(iter(self._join_buffers)).source.hash_range
        held = sum(table.file_bytes(low, high) for table in self._join_buffers)
        held += 0 if self.remote_runs is None else self.remote_runs.remote_bytes(low, high)
        return owned.split(1 + held // self._together)

    def sweep(self, limit: int | None = None) -> None:
        """Check the next `limit` keys (None: all), in turn, and remove rows that expired; also of some evicted keys."""
        if not self._expires:
            return
        every, count = limit is None, self.index.count
        expiring = [t for t in self._row_tables if not isinstance(t, SessionTable) and t.source.ttl is not None]
        # never all at once: a table of panes may have very many keys
        running = [] if every else [t for t in self._pane_tables if isinstance(t, RunningTable) and t.source.ttl]
        if not expiring and not running:
            return
        limit = count if limit is None else limit
        lists = any(isinstance(table, CollectionTable) for table in expiring) and not every
        first = 0 if every or self._swept >= count else self._swept
        self._swept = min(first + (max(1, limit // _SWEEP_PART) if lists else limit), count)
        slots = np.arange(first, self._swept, dtype=np.int32)
        for table in (*expiring, *running):
            table.remove_expired(slots)
        if running and self.policy.should_find_dead(count):
            self.drop_dead_keys()
        if self.cold is None:
            return
        deadlines = [table.source.deadline for table in self._row_tables]
        gone = self.cold.sweep(1 + limit // self._limits.cold_sweep_part, deadlines, self.index.has_hashes)
        for owner, names in zip(self._row_tables, gone, strict=True):
            if names and isinstance(owner, CollectionTable):  # a restore and a compaction ignore expired values
                keys, hashes, _ = decode_keys(self.index.schema, names)
                owner.note_expired(keys, hashes)

    def _evict(self, held: int) -> None:
        """Evict the least recently used keys."""
        count, view = self.index.count, self.index.view()
        stays = self.policy.kept_mask(count, held)
        leaving = np.flatnonzero(~stays).astype(np.int32)
        leaving = leaving[hash_order(view.hashes[leaving])]
        if self.cold is not None and self._row_tables:
            for piece in pieces(leaving, self._limits.evicted_keys):
                self._put_rows(self.cold, view, piece)
        others: tuple[TimerTable | PaneTable, ...] = (*self._timer_tables, *self._pane_tables)
        for table in others:  # after the rows: sessions that leave register timers
            table.evict_keys(view, leaving)
        self._keep(np.flatnonzero(stays).astype(np.int32))

    def _put_rows(self, cold: SpillStore, keys: KeyView, slots: I32) -> None:
        """Store the rows of slots, which leave memory, where the records are not up to date."""
        # remote records may have been dropped, and fetched again from the log
        same = self.stored[slots] & ~self._changed[slots] & (self.fetcher is None)
        changed = slots[~same]
        parts = [table.parts_at(changed) for table in self._row_tables]
        for table in self._row_tables:
            table.forget_rows(slots)
        cold.put(keys, changed, parts)
        without = changed[~np.fromiter(map(any, zip(*parts, strict=True)), np.bool_, len(changed))]
        cold.delete(keys, without[self._may_be_stored(without)])

    def _may_be_stored(self, slots: I32) -> np.ndarray:
        """Return a mask of the slots whose keys may have a record in the cold store."""
        return np.ones(len(slots), np.bool_) if self.fetcher is not None else self.stored[slots]

    def drop_dead_keys(self) -> None:
        """Compact the index: drop keys that no table uses, if they are at least half of all."""
        count = self.index.count
        used = np.zeros(count, np.bool_)
        for table in self._tables:
            table.mark_used(used)
        if not self.policy.should_drop_dead(int(used.sum()), count):
            return
        if self.cold is not None:
            dead = np.flatnonzero(~used).astype(np.int32)
            self.cold.delete(self.index.view(), dead[self._may_be_stored(dead)])
        self._keep(np.flatnonzero(used).astype(np.int32))

    def _keep(self, kept: I32) -> None:
        """Keep only these keys, renumbered in the same order; tables have no state in memory for the others."""
        numbers = renumbering(kept, self.index.count)
        self.index = self.index.kept(kept, self.policy.batch_rows)
        for table in self._tables:
            table.renumber(numbers)
        if self.evicts:
            self.policy.lru.moved(kept)
            self.stored = self.stored[kept]
        if self.cold is not None:
            self._changed = self._changed[kept]
