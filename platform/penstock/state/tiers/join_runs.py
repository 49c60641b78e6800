"""Runs of join rows in order of (slot, time), in memory or in mapped local files, with range lookups and merges.

Rows in memory refer to keys by slots of the operator's index. A file contains its keys, numbered in hash order, so that
none of them has to be in memory. Requested keys are found by hash and then compared. Used by
`state.tables.join_buffer`, remote state and the join operators.
"""

from __future__ import annotations

import errno
import io
import mmap
import os
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.core.errors import StorageError
from penstock.kernels.rows.join_kernels import find_ranges, write_pairs
from penstock.state.keys.key_index import KeyIndex, columns_of
from penstock.state.memory.limits import PRODUCTION, StateLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.core.keygroup import HashRange
    from penstock.kernels.compiler.compile import I32, I64
    from penstock.kernels.keys.key_columns import KeyColumns
    from penstock.state.keys.key_index import Keys


@dataclass(frozen=True, slots=True)
class RunKeys:
    """Distinct keys in ascending order of their hashes."""

    schema: pa.Schema
    hashes: I64
    arrays: list[pa.Array]

    @classmethod
    def of(cls, keys: Keys, slots: I32) -> tuple[RunKeys, I32]:
        """Return the distinct keys of rows, and the key number of each row."""
        distinct, places = in_order(keys, slots)
        return cls(keys.schema, keys.hashes[distinct], keys.gather(distinct)), places

    def gather(self, slots: I32) -> list[pa.Array]:
        """Return the key columns of the given key numbers."""
        chosen = pa.array(slots)
        return [array.take(chosen) for array in self.arrays]

    def between(self, part: HashRange) -> tuple[int, int]:
        """Return the first key number in a range of hashes, and the first one after it."""
        first = np.searchsorted(self.hashes, part.low)
        return int(first), int(np.searchsorted(self.hashes, part.high, side="right"))

    def numbers_of(self, keys: Keys, slots: I32) -> I32:
        """Return the number of each of some keys, in hash order; -1: the key is not in this file."""
        numbers = np.full(len(slots), -1, np.int32)
        hashes = keys.hashes[slots]
        first, stop = np.searchsorted(hashes, self.hashes[0]), np.searchsorted(hashes, self.hashes[-1], side="right")
        probes, hashes = slots[first:stop], hashes[first:stop]
        firsts = np.searchsorted(self.hashes, hashes)
        counts = np.searchsorted(self.hashes, hashes, side="right") - firsts
        for further in range(int(counts.max(initial=0))):  # several candidates if keys share a hash
            some = np.flatnonzero(counts > further)
            found = (firsts[some] + further).astype(np.int32)
            same = _same(keys, probes[some], self, found)
            numbers[first + some[same]] = found[same]
        return numbers


def in_order(keys: Keys, slots: I32) -> tuple[I32, I32]:
    """Return the distinct keys of rows in ascending order of their hashes, and each row's position among them."""
    distinct, places = np.unique(slots, return_inverse=True)
    order = np.argsort(keys.hashes[distinct], kind="stable")
    number = np.empty(len(order), np.int32)
    number[order] = np.arange(len(order), dtype=np.int32)
    return distinct[order], number[places]


def _same(keys: Keys, slots: I32, others: Keys, found: I32) -> np.ndarray:
    """Return a mask of the keys that equal the key of the same hash at the same position in `found`."""
    index, hashes = KeyIndex(keys.schema), others.hashes[found]
    own = index.upsert(columns_of(keys, slots), hashes).copy()
    return np.asarray(own == index.upsert(columns_of(others, found), hashes))


_ALIGNED = 64
#: Smallest file, while the disk has room; it takes several runs.
_FILE = 64 << 20
#: A new file takes one part in this many of the bytes written before, so that few files are open.
_LARGER = 8
_HINTS = {
    errno.EMFILE: "raise the TaskManager's limit of open files (ulimit -n)",
    errno.ENFILE: "raise the host's limit of open files (fs.file-max)",
    errno.ENOMEM: "raise the host's limit of mapped files (vm.max_map_count)",
}


class _File:
    """A file without a name to which runs are appended."""

    def __init__(self, folder: Path, size: int) -> None:
        self._handle, name = tempfile.mkstemp(dir=folder)
        #: Closes the file for writing, at the latest with its last reference.
        self.close = weakref.finalize(self, os.close, self._handle)
        Path(name).unlink()
        os.truncate(self._handle, size)
        self.mapped = mmap.mmap(self._handle, size)  # duplicates the descriptor, and closes the duplicate
        self._size, self._end = size, 0

    def has_room(self, size: int) -> bool:
        """Return whether `size` more bytes fit."""
        return self._end + size <= self._size

    def write(self, data: memoryview) -> int:
        """Append data and return its offset."""
        at, done = self._end, 0
        while done < len(data):
            done += os.pwrite(self._handle, data[done:], at + done)
        self._end = at + -(-len(data) // mmap.PAGESIZE) * mmap.PAGESIZE
        return at


class RunFiles:
    """The spill folder of a subtask."""

    def __init__(
        self, folder: Path, least: int = _FILE, larger: int = _LARGER, *, limits: StateLimits = PRODUCTION
    ) -> None:
        """Prepare to write to `folder`, which is created with the first rows.

        A file takes at least `least` bytes, and one part in `larger` of the bytes written before.
        """
        self._folder, self._least, self._larger = folder, least, larger
        self._file: _File | None = None
        self._written = 0
        self._groups = 0
        self.limits = limits

    def new_group(self) -> int:
        """Return the number of a new group of runs, which are merged together."""
        self._groups += 1
        return self._groups

    def close(self) -> None:
        """Stop writing; runs that are in use keep their files."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def write(self, run: Run, keys: RunKeys, group: int = 0) -> Run:
        """Write a run whose slots are numbers of `keys`, and return it with its columns mapped, as one of a group.

        Raises:
            StorageError: the disk is full or broken.
        """
        packed = io.BytesIO()
        tables = [pa.array(keys.hashes), *keys.arrays], [pa.array(run.slots), pa.array(run.times), *run.values]
        places = [_append_columns(packed, columns) for columns in tables]
        with packed.getbuffer() as data:
            mapped, at = self._placed(data)
        found = memoryview(mapped)[at : at + packed.tell()]
        own_keys, own_rows = (_columns_at(found, place) for place in places)
        run_keys = RunKeys(keys.schema, own_keys[0].to_numpy(), own_keys[1:])
        slots, times = (column.to_numpy() for column in own_rows[:2])
        place = (mapped, at, len(found))
        return Run(slots, times, own_rows[2:], 0, run.low, run.high, run_keys, place, group, run.stop)

    def _placed(self, data: memoryview) -> tuple[mmap.mmap, int]:
        try:
            if self._file is None or not self._file.has_room(len(data)):
                self.close()
                self._folder.mkdir(parents=True, exist_ok=True)
                self._file = _File(self._folder, max(self._least, self._written // self._larger, len(data)))
            self._written += len(data)
            return self._file.mapped, self._file.write(data)
        except OSError as error:
            msg = f"rows cannot be spilled to {self._folder}: {error}"
            hint = _HINTS.get(error.errno or 0, "free space on the TaskManager's local disk")
            raise StorageError(msg, hint=hint) from error


def _append_columns(packed: io.BytesIO, columns: Sequence[pa.Array]) -> int:
    """Append columns of the same length to the bytes of a run; return their offset."""
    first = packed.seek(-(-packed.tell() // _ALIGNED) * _ALIGNED)
    batch = pa.record_batch(list(columns), names=[str(place) for place in range(len(columns))])
    with pa.ipc.new_stream(packed, batch.schema) as writer:
        writer.write_batch(batch)
    return first


def _columns_at(data: memoryview, first: int) -> list[pa.Array]:
    """Return the columns at an offset, without a copy."""
    with pa.ipc.open_stream(pa.py_buffer(data[first:])) as reader:
        return list(reader.read_next_batch().columns)


@dataclass(slots=True)
class Run:
    """Rows in order of (slot, time), within a span of time."""

    slots: I32
    times: I64
    values: list[pa.Array]
    #: Bytes in memory; those of a file do not count.
    size: int
    low: int
    high: int
    #: For runs in files: the keys, whose numbers are the slots; None: the slots are those of the operator's index.
    keys: RunKeys | None = None
    #: For runs in files: the mapped file, and offset and length in it.
    place: tuple[mmap.mmap, int, int] | None = None
    #: For runs in files: the number of the group they were written in.
    group: int = 0
    #: All row numbers of the rows are below this, those of later runs are not; 0: no segment has the rows.
    stop: int = 0

    @classmethod
    def of(cls, slots: I32, times: I64, values: list[pa.Array]) -> Run:
        """Sort rows into a run."""
        order = _order(slots, times)
        chosen = pa.array(order)
        return cls.ordered(slots[order], times[order], [value.take(chosen) for value in values])

    @classmethod
    def ordered(cls, slots: I32, times: I64, values: list[pa.Array]) -> Run:
        """Make a run of sorted rows."""
        size = int(slots.nbytes + times.nbytes) + sum(int(value.nbytes) for value in values)
        return cls(slots, times, values, size, int(times.min()), int(times.max()))

    def release(self) -> None:
        """Release the memory of a file's pages that were read; they are read again on demand."""
        if self.place is not None:
            mapped, at, length = self.place
            mapped.madvise(mmap.MADV_DONTNEED, at, length)

    @property
    def saved(self) -> bool:
        """Whether a segment has the rows."""
        return self.stop > 0

    @property
    def first(self) -> int:
        """The number of the first row of a run that has just been saved; its rows are numbered in order."""
        return self.stop - len(self.slots)

    @property
    def length(self) -> int:
        """The bytes of the file."""
        return 0 if self.place is None else self.place[2]

    @property
    def clean_at(self) -> int:
        """The time at which to clean next: the middle of the times, or the last time of a file."""
        return self.high if self.keys is not None else self.low + (self.high - self.low) // 2

    def without(self, cleaned: int) -> Run | None:
        """Return the run without cleaned rows; a file is kept or dropped as a unit."""
        if self.keys is not None:
            return self if self.high > cleaned else None
        kept = self.times > cleaned
        if kept.all():
            return self
        if not kept.any():
            return None
        return self.chosen(kept)

    def chosen(self, kept: np.ndarray) -> Run:
        """Return the selected rows, at least one."""
        return self.taken(np.flatnonzero(kept))

    def taken(self, rows: I64) -> Run:
        """Return the rows at these ascending positions, at least one."""
        chosen = pa.array(rows)
        made = Run.ordered(self.slots[rows], self.times[rows], [value.take(chosen) for value in self.values])
        made.stop = self.stop
        return made

    def rows(self, at: I64, upsert: Callable[[KeyColumns, I64], I32]) -> tuple[I32, I64, list[pa.Array]]:
        """Return (slots, times, values) of the rows at these positions.

        Keys of a file get slots by `upsert`, which finds or creates them in an index.
        """
        slots, chosen = self.slots[at], pa.array(at)
        if self.keys is not None:
            distinct, places = np.unique(slots, return_inverse=True)
            slots = upsert(columns_of(self.keys, distinct), self.keys.hashes[distinct])[places]
        return slots, self.times[at], [value.take(chosen) for value in self.values]

    def ranges(self, slots: I32, lows: I64, highs: I64) -> tuple[I64, I64]:
        """Return the first position and the number of rows of each requested slot in its span (inclusive)."""
        ranges = np.empty(len(slots), np.int64), np.empty(len(slots), np.int64)
        find_ranges((self.slots, self.times), slots, (lows, highs), ranges)
        return ranges

    def pairs(self, slots: I32, lows: I64, highs: I64, most: int = PRODUCTION.join_pairs) -> Iterator[tuple[I32, I32]]:
        """Yield (request, position in this run) of all rows of a requested slot in its span, `most` at a time."""
        ranges = self.ranges(slots, lows, highs)
        total, state = int(ranges[1].sum()), np.zeros(2, np.int64)
        while total > 0:
            room = min(total, most)
            probes, found = np.empty(room, np.int32), np.empty(room, np.int32)
            total -= int(write_pairs(ranges, state, (probes, found)))
            yield probes, found


def _order(slots: I32, times: I64) -> I64:
    """Return the order of (slot, time); both in one word if they fit, which merges sorted parts in one pass."""
    low, span = int(times.min()), int(times.max()) - int(times.min())
    bits = span.bit_length()
    if bits + int(slots.max()).bit_length() < 63:
        return np.argsort((slots.astype(np.int64) << bits) | (times - low), kind="stable")
    return np.lexsort((times, slots))


def spilled_to_files(run: Run, keys: Keys, run_files: RunFiles, cleaned: int, group: int) -> Iterator[Run]:
    """Write the rows of a run in memory, except cleaned ones, to files of one group, and yield the new runs."""
    for low, high in spans(run.low, run.high, _files_of(run.size, run_files.limits)):
        inside = (run.times >= max(low, cleaned + 1)) & (run.times <= high)
        if inside.any():
            yield written(run.chosen(inside), keys, run_files, group)


def written(run: Run, keys: Keys, run_files: RunFiles, group: int) -> Run:
    """Write the rows of a run in memory to a file and return the run of it."""
    own, numbers = RunKeys.of(keys, run.slots)
    ordered = Run.of(numbers, run.times, run.values)
    ordered.stop = run.stop
    return run_files.write(ordered, own, group)


def spans(low: int, high: int, parts: int) -> Iterator[tuple[int, int]]:
    """Yield the first and last time of `parts` parts of a span of time; fewer if it is too short."""
    width = (high - low) // parts + 1
    for first in range(low, high + 1, width):
        yield first, min(first + width - 1, high)


def to_merge(runs: list[Run], fan: int, most_bytes: int = 1 << 62) -> list[Run]:
    """Return the runs of neighbouring groups to merge, none much larger than the newer ones together.

    Empty when there are fewer than `fan` groups that are not larger than `most_bytes` together.
    """
    groups: list[list[Run]] = []
    for run in runs:
        if run.keys is None:
            continue
        if groups and groups[-1][0].group == run.group:
            groups[-1].append(run)
        else:
            groups.append([run])
    sizes = [sum(run.length for run in group) for group in groups]
    for last in range(len(groups), fan - 1, -1):
        first, together = last - 1, sizes[last - 1]
        while first > 0 and sizes[first - 1] <= min(2 * together, most_bytes - together):
            first -= 1
            together += sizes[first]
        if last - first >= fan:
            return [run for group in groups[first:last] for run in group]
    return []


class Merge:
    """A merge of runs in files into one group of files."""

    def __init__(self, inputs: list[Run], run_files: RunFiles, cleaned: Callable[[], int], files: int) -> None:
        """Prepare to write `files` files, without rows up to the time that `cleaned` returns then."""
        self._inputs = inputs
        self._made = _merged(inputs, run_files, cleaned, files)
        self._done: list[Run] = []

    def write_next(self) -> bool:
        """Write one more file; return whether more may follow."""
        for run in self._made:
            if run is not None:
                run.release()
                self._done.append(run)
            return True
        return False

    def replace_inputs(self, runs: list[Run], cleaned: int) -> list[Run]:
        """Return runs with the merged files in place of their inputs, which a freeze may have saved since."""
        old = {id(run) for run in self._inputs}
        for run in self._done:
            run.stop = max(run.stop for run in self._inputs)
        place = next((at for at, run in enumerate(runs) if id(run) in old), 0)
        kept = [run for run in runs if id(run) not in old]
        return [*kept[:place], *(run for run in self._done if run.high > cleaned), *kept[place:]]


def _merged(runs: list[Run], run_files: RunFiles, cleaned: Callable[[], int], files: int) -> Iterator[Run | None]:
    """Merge runs in files into one group of `files` files, and yield the new runs; None for an empty file.

    For one key and time, rows of earlier runs come first.
    """
    schema, group = next(run.keys.schema for run in runs if run.keys is not None), run_files.new_group()
    low, high = max(min(run.low for run in runs), cleaned() + 1), max(run.high for run in runs)
    for first, last in spans(low, high, files):
        index, parts = KeyIndex(schema), []
        for run in runs:
            if run.low > last or run.high < first:
                continue
            rows = np.flatnonzero((run.times >= max(first, cleaned() + 1)) & (run.times <= last))
            if len(rows):
                parts.append(run.rows(rows, index.upsert))
        for run in runs:
            run.release()
        yield written(joined(parts), index.view(), run_files, group) if parts else None


def parts_of_time(runs: list[Run], piece: int, limits: StateLimits) -> int:
    """Return the number of files of about `piece` bytes for a merge: enough that some are dropped early."""
    size = sum(run.length for run in runs)
    return max(size // piece, _files_of(size, limits))


def _files_of(size: int, limits: StateLimits) -> int:
    """Return the number of files, by time, for `size` bytes: few, and none of them small."""
    return max(1, min(limits.run_splits, size // max(1, limits.spilled_bytes)))


def joined(parts: list[tuple[I32, I64, list[pa.Array]]]) -> Run:
    """Return (slots, times, values) of one index as one run; equal ones keep the order of the parts."""
    slots, times, values = zip(*parts, strict=True)
    columns = [pa.concat_arrays(list(column)) for column in zip(*values, strict=True)]
    return Run.of(np.concatenate(slots), np.concatenate(times), columns)
