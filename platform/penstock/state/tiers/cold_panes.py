"""Cold rows of a pane table on the local disk: a memory-mapped file of records, or RocksDB.

The file is for a table with one pane and fixed-width keys and values: no library is between a cell and its place on
disk. In RocksDB cells are packed as byte records, for keys and values of any type. Like every cold store both are spill
areas: they start empty and disappear with the process (the file has no name). The operating system's page cache holds
as much of the file as fits. Mapped pages count as resident memory of the process, so they are unmapped when they may
exceed the store's share. Called by `PaneTable` and by remote state in the owner's thread.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
import weakref
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from penstock.core.errors import StorageError
from penstock.kernels.aggregates import cold_cells as kernels
from penstock.kernels.aggregates import values as value_kernels
from penstock.kernels.aggregates.pages import put_cells
from penstock.kernels.keys.key_columns import FixedColumn
from penstock.kernels.rows.row_order import hash_order
from penstock.state.keys.column_store import FixedStore
from penstock.state.keys.sorted_keys import bound, bounds, decode_keys, encode_keys
from penstock.state.memory.limits import PRODUCTION, StateLimits
from penstock.state.memory.slot_arrays import pieces
from penstock.state.tiers.rocksdb import RECORD_BYTES, LocalBytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.core.keygroup import HashRange
    from penstock.kernels.compiler.compile import I32, I64
    from penstock.kernels.keys.key_columns import KeyColumns
    from penstock.state.cells.accumulators import PaneTableSpec
    from penstock.state.cells.pane_memory import PaneCells
    from penstock.state.cells.value_heap import ValueHeap
    from penstock.state.keys.key_index import KeyView
    from penstock.state.tiers.rocksdb import SortedStore

_FIRST_RECORDS = 8192
#: Highest load factor; above it the file is made twice as large.
_LOAD = 0.65
#: A file is made for this many times the records that are known to come, so that it does not grow soon.
_FIRST_ROOM = 1.2
_PIECE = 16_384
#: Records that are asked of the disk at a time, and a sample of them.
_ASKED, _SAMPLE = 8192, 32
_AHEAD = 2 << 20
#: A stretch takes at most one part in this many of the memory that a store may map.
_STRETCH_PART = 2
#: Records moved to a larger file between two checks of the mapped bytes.
_MOVED = 16_384
#: At least this much of a region's file may stay mapped between two calls.
_MAPPED_BYTES = 256 << 10
#: Bytes that one access may map: the kernel maps the pages around it as well.
_AROUND = 64 << 10


class _File:
    """Records in one mapped file; the disk space is freed when no reference to `table` is left."""

    def __init__(self, folder: Path, words: int, owned: HashRange, records: int, memory_bytes: int) -> None:
        self._folder, self._owned, self._memory_bytes = folder, owned, memory_bytes
        self.capacity = records
        self.count = 0
        rows = records + kernels.TAIL
        self.size = rows * words * 8
        self._fd, name = tempfile.mkstemp(dir=folder)
        fcntl.fcntl(self._fd, fcntl.F_SETFL, os.O_RDWR | os.O_NOATIME)  # no access time for every record read
        self.close = weakref.finalize(self, os.close, self._fd)
        Path(name).unlink()
        try:
            os.posix_fallocate(self._fd, 0, self.size)
        except OSError as error:
            self.close()
            msg = f"{self.size >> 20} MB of spill space cannot be allocated in {folder}: {error}"
            raise StorageError(msg, hint="free space on the TaskManager's local disk") from error
        self._map = mmap.mmap(self._fd, self.size)
        # otherwise the kernel reads ahead up to 2 MB, and writes all of it for each changed record
        self._map.madvise(mmap.MADV_RANDOM)
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_RANDOM)
        self.table = np.frombuffer(self._map, np.int64).reshape(rows, words)
        self._stays_mapped = self.size <= memory_bytes
        self._on_disk = (self._fd, rows)
        self._room = np.empty((0 if self._stays_mapped else kernels.ROOM, words), np.int64)

    @property
    def range(self) -> tuple[int, float]:
        """The lowest hash, and home positions per hash."""
        return self._owned.low, self.capacity / (self._owned.high - self._owned.low + 1)

    def larger(self, key_words: int, records: int) -> _File:
        """Return a file with room for `records` that has all records of this one."""
        capacity = self.capacity
        while capacity * _LOAD < records:
            capacity *= 2
        while True:
            made = _File(self._folder, self.table.shape[1], self._owned, capacity, self._memory_bytes)
            if self._move_to(made, key_words):
                self.close()
                return made
            made.close()
            capacity *= 2

    def _move_to(self, larger: _File, key_words: int) -> bool:
        """Move the records to a larger file in order; return False if its end was reached."""
        for first in range(0, len(self.table), _MOVED):
            self.ask_for(first)
            count = int(kernels.cold_move(self.table[first : first + _MOVED], larger.table, larger.range, key_words))
            if count < 0:
                return False
            larger.count += count
            self.unmap()
            larger.unmap()
        return True

    def get(self, heads: I64, order: I64, target: tuple[I64, I64]) -> None:
        """Copy cells to `target` as `kernels.cold_get` does.

        If the file may not stay mapped, records are read instead. A page fault maps the pages around a record too, and
        each would have to be unmapped again.
        """
        for some in pieces(order, _ASKED):
            self.bring(heads[some, kernels.HASH])
            done = 0
            if not self._stays_mapped:
                done = int(kernels.cold_read(self._on_disk, self._room, self.range, (heads, some), target))
                self._require(done)
            kernels.cold_get(self.table, self.range, heads, some[done:], target)

    def put(self, heads: I64, order: I64, cells: I64, stretch_bytes: int, sparse_bytes: int) -> int:
        """Write cells; return their number, fewer than asked if the end of the file was reached.

        Dense cells are written one stretch of the file at a time. That is cheaper than record by record, as long as it
        takes at most `sparse_bytes` of the file for each.
        """
        done = 0
        for end, many in self._runs(heads[order, kernels.HASH], stretch_bytes, sparse_bytes):
            state = np.zeros(3, np.int64)
            if many:
                self._put_stretches((heads, order[done:end]), cells, stretch_bytes, state)
            else:
                self._put_records((heads, order[done:end]), cells, state)
            self.count += int(state[1])
            done += int(state[0])
            if done < end:
                break
        return done

    def _put_records(self, keys: tuple[I64, I64], cells: I64, state: I64) -> None:
        """Write cells one by one; `state` as for `kernels.cold_put`."""
        heads, order = keys
        while state[0] < len(order):
            end = min(int(state[0]) + _ASKED, len(order))
            self.bring(heads[order[state[0] : end], kernels.HASH])
            if not self._stays_mapped:
                made = kernels.cold_write(self._on_disk, self._room, self.range, (heads, order[:end]), cells, state)
                self._require(made)
            if kernels.cold_put(self.table, self.range, heads, order[:end], cells, state) < end:
                return

    def bring(self, hashes: I64) -> None:
        """Start to read the records of these sorted hashes together, unless they are in the page cache.

        Read one by one, each would wait for the disk. A sample decides, because asking costs a system call a record.
        """
        size = self.table.shape[1] * 8
        places = (self._homes(hashes).astype(np.int64) * size).tolist()
        try:
            for place in places[:: 1 + len(places) // _SAMPLE]:
                os.preadv(self._fd, [bytearray(1)], place, os.RWF_NOWAIT)
        except OSError:
            for place in places:
                os.posix_fadvise(self._fd, place, kernels.WINDOW * size, os.POSIX_FADV_WILLNEED)

    def _homes(self, hashes: I64) -> np.ndarray:
        """Return where in the file, in records, the search for each hash begins."""
        low, factor = self.range
        return (hashes.view(np.uint64) - np.int64(low).view(np.uint64)).astype(np.float64) * factor

    def _runs(self, hashes: I64, stretch_bytes: int, sparse_bytes: int) -> list[tuple[int, bool]]:
        """Return the ends of runs of sorted hashes, and whether the stretches of each run are dense."""
        size = self.table.shape[1] * 8
        stretches = (self._homes(hashes) * size).astype(np.int64) // stretch_bytes
        firsts = np.flatnonzero(np.diff(stretches, prepend=-1))
        many = np.diff(firsts, append=len(hashes)) * sparse_bytes >= min(stretch_bytes, self.size)
        last = np.flatnonzero(np.append(many[1:] != many[:-1], True))
        ends = np.append(firsts[1:], len(hashes))
        return [(int(ends[i]), bool(many[i])) for i in last]

    def _put_stretches(self, keys: tuple[I64, I64], cells: I64, stretch_bytes: int, state: I64) -> None:
        """Write cells by stretches; `state` as for `kernels.cold_put`."""
        heads, order = keys
        rows, words = self.table.shape
        limit = stretch_bytes // (words * 8)
        room = np.empty((limit, words), np.int64)
        while state[0] < len(order):
            before, base = int(state[0]), int(kernels.cold_home(heads[order[state[0]], kernels.HASH], self.range))
            stretch = room[: rows - base]
            os.preadv(self._fd, [stretch.data], base * words * 8)
            state[2] = base
            kernels.cold_put(stretch, self.range, heads, order, cells, state)
            os.pwrite(self._fd, stretch.data, base * words * 8)
            if state[0] == before:
                if base + len(stretch) == rows:
                    return
                limit *= 2
                room = np.empty((limit, words), np.int64)

    def _require(self, done: int) -> None:
        if done == kernels.REFUSED:
            msg = f"spilled state in {self._folder} cannot be read or written"
            raise StorageError(msg, hint="check the TaskManager's local disk for errors and free space")

    def ask_for(self, record: int) -> None:
        """Start reading ahead for a sequential scan: the kernel does not read ahead by itself."""
        start = record * self.table.shape[1] * 8 // mmap.PAGESIZE * mmap.PAGESIZE
        self._map.madvise(mmap.MADV_WILLNEED, start, min(_AHEAD, self.size - start))

    def unmap(self) -> None:
        """Remove the pages from this process's resident memory; they stay in the page cache or on disk."""
        self._map.madvise(mmap.MADV_DONTNEED)


class ColdFileStore:
    """The cold rows of one table, a file per region; its only pane starts at 0."""

    def __init__(
        self,
        spec: PaneTableSpec,
        owned: HashRange,
        folder: Path,
        memory_bytes: int,
        limits: StateLimits = PRODUCTION,
        regions: int = 1,
    ) -> None:
        """Start empty; at most about `memory_bytes` of the files are mapped between two calls."""
        self._limits = limits
        self._spec, self._owned, self._folder, self._memory_bytes = spec, owned, folder, memory_bytes
        self._key_words = kernels.KEYS + len(spec.key_schema)
        self.regions = owned.split(regions)
        self._cuts = np.array([part.low for part in self.regions[1:]], np.int64)
        self._files: list[_File | None] = [None] * len(self.regions)
        #: The most bytes of a file that stay mapped, and the bytes mapped since each file was unmapped.
        self._mapped_bytes = memory_bytes if regions == 1 else max(_MAPPED_BYTES, memory_bytes // regions)
        self._touched = [0] * len(self.regions)
        self._expected = 0

    def expect(self, rows: int) -> None:
        """Set the number of rows for which the files are allocated at first.

        Otherwise rows in hash order would fill the front of a file, and searches would take long probes.
        """
        self._expected = rows // len(self.regions)

    @property
    def panes(self) -> list[int]:
        """The panes with rows."""
        return [0] if any(self._files) else []

    def rows_of(self, pane: int) -> int:
        """Return the number of rows of the pane, at most."""
        return 0 if pane else sum(file.count for file in self._files if file is not None)

    @property
    def local_bytes(self) -> I64:
        """The bytes of each region on the local disk."""
        return np.array([0 if file is None else file.size for file in self._files], np.int64)

    def for_changes(self) -> ColdFileStore:
        """Return an empty file for changed rows that are evicted before the next barrier."""
        return ColdFileStore(self._spec, self._owned, self._folder, self._memory_bytes, self._limits)

    def fetch(
        self,
        keys: KeyView,
        requested: tuple[I32, I64],
        target: tuple[I64, I64],
        heap: ValueHeap | None = None,  # noqa: ARG002 - its cells have no references
    ) -> None:
        """Copy the cells of (slots, panes) into the empty cells of `target` = (cells, cell of each)."""
        if any(self._files):
            heads, parts = self._by_region(keys, requested[0])
            for region, order in parts:
                file = self._files[region]
                if file is not None:
                    file.get(heads, order, target)
                    self._used(region, len(order))

    def put(self, keys: KeyView, rows: PaneCells) -> None:
        """Write rows."""
        stretch = min(self._limits.stretch_bytes, max(_AROUND, self._mapped_bytes // _STRETCH_PART))
        heads, parts = self._by_region(keys, rows.slots)
        for region, order in parts:
            file = self._with_room(region, len(order))
            done = file.put(heads, order, rows.cells, stretch, self._limits.sparse_bytes)
            while done < len(order):
                file = self._files[region] = file.larger(self._key_words, int(file.capacity * _LOAD) + 1)
                done += file.put(heads, order[done:], rows.cells, stretch, self._limits.sparse_bytes)
            self._used(region, len(order))

    def forget(self, keys: KeyView, slots: I32, panes: I64) -> None:  # noqa: ARG002 - there is one pane
        """Remove rows."""
        heads, parts = self._by_region(keys, slots)
        for region, order in parts:
            file = self._files[region]
            if file is not None:
                file.bring(heads[order, kernels.HASH])
                kernels.cold_forget(file.table, file.range, heads[order], self._spec.width)
                self._used(region, len(order))

    def drop_below(self, pane: int) -> None:
        """Remove all panes that start before `pane`."""
        if pane > 0:
            self.close()

    def drop(self, region: int) -> None:
        """Delete a region's file."""
        file, self._files[region] = self._files[region], None
        if file is not None:
            file.close()

    def scan(
        self,
        pane: int,
        part: HashRange,
        heap: ValueHeap | None = None,  # noqa: ARG002 - its cells have no references
        most: int = _PIECE,
    ) -> Iterator[tuple[KeyColumns, I64, I64, I64]]:
        """Yield (keys, hashes, panes, cells) of a pane's rows in a hash range, at most `most` at a time."""
        for region, owned in enumerate(self.regions):
            file, inside = self._files[region], part.intersect(owned)
            if file is None or inside is None or pane:
                continue
            state = np.full(1, -1, np.int64)
            while state[0] < len(file.table):
                heads = np.empty((min(most, _PIECE), self._key_words), np.int64)
                cells = np.empty((min(most, _PIECE), self._spec.width), np.int64)
                if state[0] > 0:
                    file.ask_for(int(state[0]))
                count = kernels.cold_scan(file.table, file.range, inside.low, inside.high, (heads, cells), state)
                self._used(region, count)
                if count:
                    hashes = np.ascontiguousarray(heads[:count, kernels.HASH])
                    yield self._columns(heads[:count]), hashes, np.zeros(count, np.int64), cells[:count]

    def close(self) -> None:
        """Free the disk space."""
        for region in range(len(self.regions)):
            self.drop(region)

    def _with_room(self, region: int, rows: int) -> _File:
        file = self._files[region]
        if file is None:
            records = max(_FIRST_RECORDS, int(max(rows, self._expected) * _FIRST_ROOM / _LOAD))
            words = self._key_words + self._spec.width
            file = _File(self._folder, words, self.regions[region], records, self._mapped_bytes)
        elif file.count + rows > file.capacity * _LOAD:
            file = file.larger(self._key_words, file.count + rows)
        self._files[region] = file
        return file

    def _used(self, region: int, records: int) -> None:
        file = self._files[region]
        self._touched[region] += records * _AROUND
        if file is not None and min(self._touched[region], file.size) > self._mapped_bytes:
            self._touched[region] = 0
            file.unmap()

    def _by_region(self, keys: KeyView, slots: I32) -> tuple[I64, list[tuple[int, I64]]]:
        """Return [tag, hash, key columns] of slots, and the regions with their positions in hash order."""
        heads = np.empty((len(slots), self._key_words), np.int64)
        heads[:, kernels.HASH] = keys.hashes[slots]
        tags = np.ones(len(slots), np.int64)
        for k, column in enumerate(keys.columns):
            assert isinstance(column, FixedStore)  # noqa: S101 - other keys are in a `SortedColdStore`
            heads[:, kernels.KEYS + k] = column.words[slots]
            tags += (column.valid[slots].astype(np.int64) if column.nulls else 1) << (k + 1)
        heads[:, kernels.TAG] = tags
        order = hash_order(heads[:, kernels.HASH])
        if len(self.regions) == 1:
            return heads, [(0, order)] if len(order) else []
        parts = np.split(order, np.searchsorted(heads[order, kernels.HASH], self._cuts))
        return heads, [(region, positions) for region, positions in enumerate(parts) if len(positions)]

    def _columns(self, heads: I64) -> KeyColumns:
        columns = []
        for k in range(len(self._spec.key_schema)):
            values = np.ascontiguousarray(heads[:, kernels.KEYS + k])
            valid = ((heads[:, kernels.TAG] >> (k + 1)) & 1).astype(np.uint8)
            bitmap = np.zeros(0, np.uint8) if valid.all() else np.packbits(valid, bitorder="little")
            columns.append(FixedColumn(values, bitmap))
        return tuple(columns)


#: Bytes of records that are packed at a time; packing needs several copies of them.
_PIECE_BYTES = 1 << 20
#: Added to the offset of a value, so that no value is at 0.
_WORD = 8


class CellRecords:
    """A packer and unpacker of the cells of one table."""

    def __init__(self, spec: PaneTableSpec) -> None:
        """Prepare for cells of `spec`; no state is kept."""
        self._width, self._bytes = spec.width, spec.width * _WORD
        self._words = sorted(spec.value_words)

    def batch_size(self, cells: I64) -> int:
        """Return how many of these cells to pack at a time."""
        sizes = np.zeros(2, np.int64)
        addresses = np.ascontiguousarray(cells[:, self._words]).reshape(-1)
        value_kernels.size_of_values(addresses, max(1, len(self._words)), sizes)
        return max(1, len(cells) * _PIECE_BYTES // max(1, cells.nbytes + _WORD * int(sizes[1])))

    def pack(self, cells: I64) -> list[bytes]:
        """Return a record for each of these cells; the cells may be overwritten."""
        if not self._words:
            return _split_bytes(cells.tobytes(), range(0, cells.nbytes + 1, self._bytes))
        addresses = np.ascontiguousarray(cells[:, self._words])
        flat, sizes = addresses.reshape(-1), np.zeros(2, np.int64)
        value_kernels.size_of_values(flat, len(self._words), sizes)
        values, places = np.empty(int(sizes[1]), np.int64), np.empty(len(flat), np.int64)
        value_kernels.move_values(flat, len(self._words), _WORD, (values, places))
        # the values of a row start at its first value, or at that of the next row that has any
        begins = np.append(np.where(flat != 0, places - _WORD, values.nbytes), values.nbytes)
        edges = np.minimum.accumulate(begins[::-1])[::-1][:: len(self._words)]
        cells[:, self._words] = np.where(addresses != 0, places.reshape(addresses.shape) - edges[:-1, np.newaxis], 0)
        heads = _split_bytes(cells.tobytes(), range(0, cells.nbytes + 1, self._bytes))
        tails = _split_bytes(values.tobytes(), edges.tolist())
        return [head + tail for head, tail in zip(heads, tails, strict=True)]

    def unpack(self, records: Sequence[bytes], heap: ValueHeap) -> I64:
        """Return the cells of records; their values are put into `heap`."""
        if not self._words:
            return np.frombuffer(b"".join(records), np.int64).reshape(-1, self._width)
        heads = b"".join([record[: self._bytes] for record in records])
        cells = np.frombuffer(heads, np.int64).reshape(-1, self._width).copy()
        address = heap.put_words(np.frombuffer(b"".join([record[self._bytes :] for record in records]), np.int64))
        sizes = np.fromiter(map(len, records), np.int64, len(records)) - self._bytes
        begins = address + np.cumsum(sizes) - sizes
        places = cells[:, self._words]
        cells[:, self._words] = np.where(places != 0, begins[:, np.newaxis] + places - _WORD, 0)
        return cells


def _split_bytes(data: bytes, edges: Sequence[int]) -> list[bytes]:
    return [data[first:stop] for first, stop in pairwise(edges)]


class SortedColdStore:
    """Cold rows in a store of sorted bytes."""

    def __init__(self, spec: PaneTableSpec, store: SortedStore, owned: HashRange, regions: int = 1) -> None:
        """Start without rows."""
        self._spec = spec
        self._store = store
        self._local = LocalBytes(owned, regions)
        #: The regions, each of which can be dropped.
        self.regions = self._local.regions
        #: The approximate bytes of the rows that were written to each region since its last drop.
        self.local_bytes = self._local.sizes
        self._records = CellRecords(spec)
        #: pane -> rows written there (a row written twice counts twice).
        self._rows: dict[int, int] = {}

    @property
    def panes(self) -> list[int]:
        """The panes with rows."""
        return list(self._rows)

    def rows_of(self, pane: int) -> int:
        """Return the number of rows of the pane, at most."""
        return self._rows.get(pane, 0)

    def for_changes(self) -> None:
        """Return None: changed rows are encoded immediately instead."""

    def fetch(self, keys: KeyView, requested: tuple[I32, I64], target: tuple[I64, I64], heap: ValueHeap) -> None:
        """Copy the cells of (slots, panes) into the empty cells of `target` = (cells, cell of each): one sorted read.

        Values that they refer to are put into `heap`.
        """
        slots, panes = requested
        cells, cell = target
        rows = np.nonzero(np.isin(panes, np.array(self.panes, np.int64)))[0]
        _, first = np.unique(cell[rows], return_index=True)
        rows = rows[first]
        rows = rows[np.lexsort((keys.hashes[slots[rows]], panes[rows]))]
        values = self._store.get(encode_keys(keys, slots[rows], panes[rows])) if len(rows) else []
        found = [i for i, value in enumerate(values) if value is not None]
        if found:
            words = self._records.unpack([v for v in values if v is not None], heap)
            put_cells(cells, cell[rows[found]], words)

    def put(self, keys: KeyView, rows: PaneCells) -> None:
        """Write rows."""
        order = np.lexsort((keys.hashes[rows.slots], rows.panes))
        most = self._records.batch_size(rows.cells)
        for piece in pieces(order, most):
            cells = rows.cells[piece]
            cells[:, 0] &= ~1
            values = self._records.pack(cells)
            self._store.put(encode_keys(keys, rows.slots[piece], rows.panes[piece]), values)
            sizes = np.fromiter(map(len, values), np.int64, len(values)) + RECORD_BYTES
            self._local.add(keys.hashes[rows.slots[piece]], sizes)
        for pane, count in zip(*np.unique(rows.panes, return_counts=True), strict=True):
            self._rows[int(pane)] = self._rows.get(int(pane), 0) + int(count)

    def forget(self, keys: KeyView, slots: I32, panes: I64) -> None:
        """Remove rows."""
        if self._rows:
            self._store.delete(encode_keys(keys, slots, panes))

    def drop_below(self, pane: int) -> None:
        """Remove all panes that start before `pane`."""
        gone = [p for p in self._rows if p < pane]
        for p in gone:
            del self._rows[p]
        if gone:
            self._store.delete_range(bound(min(gone)), bound(pane))

    def drop(self, region: int) -> None:
        """Remove a region's rows; `rows_of` still counts them."""
        part = self._local.regions[region]
        self._local.sizes[region] = 0
        for pane in self._rows:
            self._store.delete_range(*bounds(pane, part))

    def scan(self, pane: int, part: HashRange, heap: ValueHeap) -> Iterator[tuple[KeyColumns, I64, I64, I64]]:
        """Yield (keys, hashes, panes, cells) of a pane's rows in a hash range; `heap` as in `fetch`."""
        for keys, values in self._store.scan(*bounds(pane, part)):
            cells = self._records.unpack(values, heap)
            columns, hashes, namespaces = decode_keys(self._spec.key_schema, keys)
            yield columns, hashes, namespaces, cells

    def close(self) -> None:
        """Close and remove the files."""
        self._store.close()


#: A store of pane rows on the local disk.
LocalPaneStore: TypeAlias = ColdFileStore | SortedColdStore
