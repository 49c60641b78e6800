"""Kernels of a cold file: a hash table on disk, ordered by hash.

A record is a row of words: [tag (0 = empty, else 1 + 2 * valid bits of the key columns), hash, key columns, cell]. The
home of a key is the place that its hash has among all hashes of the table's range. A key is at its home or after it
without a gap. So batches sorted by hash read the file sequentially, a range of hashes is a range of places, and a file
of twice the size is filled from front to back. Records are never removed; a cell with 0 rows counts as absent.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.kernels.compiler.compile import (
    I32,
    I32_IN,
    I64,
    I64_IN,
    I64_OUT,
    I64_ROWS,
    I64_ROWS_IN,
    U8,
    U8_IN,
    f8,
    i8,
    kernel,
    njit,
    tuple_of,
    types,
)

#: Records after the last home, for keys whose home is taken.
TAIL = 1024
TAG, HASH, KEYS = 0, 1, 2

#: Records that are first read for a key; those of a longer run follow.
WINDOW = 8
#: Number of records in the buffer of `cold_read` and `cold_write`.
ROOM = TAIL
#: An I/O call failed.
REFUSED = -1
_NOWHERE = -(1 << 62)

_system = types.int64(types.int32, types.uint64, types.uint64, types.int64)
_pread, _pwrite = types.ExternalFunction("pread", _system), types.ExternalFunction("pwrite", _system)

_RANGE = tuple_of(i8, f8)
_FILE = tuple_of(i8, i8)
_SORTED = tuple_of(I64_ROWS_IN, I64_IN)
_TARGET = tuple_of(I64_ROWS, I64_IN)
_OUT = tuple_of(I64_ROWS, I64_ROWS)


@njit
def _home(value: Any, low: Any, factor: Any) -> Any:
    return np.int64(np.float64(np.uint64(value) - np.uint64(low)) * factor)


@kernel(i8(i8, _RANGE))
def cold_home(value: int, owned: tuple[int, float]) -> Any:
    """Return the home of a hash: the first place it can have."""
    return _home(value, owned[0], owned[1])


@njit
def _find(table: Any, owned: Any, heads: Any, i: Any, base: Any) -> Any:
    """Return the place of the key, or -1 - the empty place where it belongs (-1 - len: the table's end was reached).

    `base` is the place in the file of the table's first record.
    """
    at = _home(heads[i, HASH], owned[0], owned[1]) - base
    while at < len(table) and table[at, TAG] != 0:
        same = table[at, HASH] == heads[i, HASH] and table[at, TAG] == heads[i, TAG]
        k = KEYS
        while same and k < heads.shape[1]:
            same = table[at, k] == heads[i, k]
            k += 1
        if same:
            return at
        at += 1
    return -1 - at


@kernel(i8(I64_ROWS, _RANGE, I64_ROWS_IN, I64_IN, _TARGET))
def cold_get(table: I64, owned: tuple[int, float], heads: I64, order: I64, target: tuple[I64, I64]) -> int:
    """Copy the cells of the keys found to `target`, (cells, cell of each key), where that is still empty."""
    cells, cell = target
    first = heads.shape[1]
    found = 0
    for j in range(len(order)):
        i = order[j]
        if cells[cell[i], 0] != 0:  # filled by an earlier row with the same key
            continue
        at = _find(table, owned, heads, i, 0)
        if at >= 0 and table[at, first] != 0:
            for w in range(cells.shape[1]):
                cells[cell[i], w] = table[at, first + w]
            found += 1
    return found


@kernel(i8(I64_ROWS, _RANGE, I64_ROWS_IN, I64_IN, I64_ROWS_IN, I64_OUT))
def cold_put(table: I64, owned: tuple[int, float], heads: I64, order: I64, cells: I64, state: I64) -> Any:
    """Write cells from `order[state[0]]` on; stop at the table's end.

    `state` = [reached, new records, place in the file of the table's first record].
    """
    first = heads.shape[1]
    j = state[0]
    while j < len(order):
        i = order[j]
        at = _find(table, owned, heads, i, state[2])
        if at < 0:
            at = -1 - at
            if at >= len(table):
                break
            for k in range(first):
                table[at, k] = heads[i, k]
            state[1] += 1
        table[at, first] = cells[i, 0] & ~1
        for w in range(1, cells.shape[1]):
            table[at, first + w] = cells[i, w]
        j += 1
    state[0] = j
    return j


@njit
def _load(file: Any, room: Any, base: Any, count: Any) -> Any:
    """Read records from `base` on; return how many the file has of them, or REFUSED."""
    descriptor, records = file
    held = min(count, records - base)
    size = held * room.shape[1] * 8
    got = _pread(np.int32(descriptor), np.uint64(room.ctypes.data), np.uint64(size), base * room.shape[1] * 8)
    return held if got == size else REFUSED


@njit
def _find_on_disk(file: Any, room: Any, owned: Any, heads: Any, i: Any, window: Any) -> Any:
    """Do the work of `_find` on records that are read into `room` as needed; return `_NOWHERE` if a read failed.

    `window` = [place in the file of the buffer's first record, records there]; a return of -1 - len means that the end
    of the file or of the buffer was reached.
    """
    home = _home(heads[i, HASH], owned[0], owned[1])
    if window[0] <= home < window[0] + window[1]:
        at = _find(room[: window[1]], owned, heads, i, window[0])
        if at != -1 - window[1]:
            return at
    for count in (WINDOW, len(room)):
        window[0] = home
        window[1] = _load(file, room, home, count)
        if window[1] < 0:
            window[1] = 0
            return _NOWHERE
        at = _find(room[: window[1]], owned, heads, i, home)
        if at != -1 - window[1]:
            return at
    return at


@kernel(i8(_FILE, I64_ROWS, _RANGE, _SORTED, _TARGET))
def cold_read(
    file: tuple[int, int], room: I64, owned: tuple[int, float], keys: tuple[I64, I64], target: tuple[I64, I64]
) -> Any:
    """Do the work of `cold_get` for (heads, order), by reading from (descriptor, records) instead of mapping the file.

    Returns how many keys were processed, which is less than all if a run is longer than `room`, or REFUSED.
    """
    heads, order = keys
    cells, cell = target
    first = heads.shape[1]
    window = np.zeros(2, np.int64)
    for j in range(len(order)):
        i = order[j]
        if cells[cell[i], 0] != 0:  # filled by an earlier row with the same key
            continue
        at = _find_on_disk(file, room, owned, heads, i, window)
        if at == _NOWHERE:
            return REFUSED
        if at == -1 - window[1] and window[0] + window[1] < file[1]:
            return j
        if at >= 0 and room[at, first] != 0:
            for w in range(cells.shape[1]):
                cells[cell[i], w] = room[at, first + w]
    return len(order)


@kernel(i8(_FILE, I64_ROWS, _RANGE, _SORTED, I64_ROWS_IN, I64_OUT))
def cold_write(
    file: tuple[int, int], room: I64, owned: tuple[int, float], keys: tuple[I64, I64], cells: I64, state: I64
) -> Any:
    """Do the work of `cold_put` for (heads, order), with reads and writes of (descriptor, records) instead of a map.

    `state` = [reached, new records]. It stops at the file's end and at a run that is longer than `room`. Returns the
    position reached, or REFUSED.
    """
    heads, order = keys
    first = heads.shape[1]
    size = room.shape[1] * 8
    window = np.zeros(2, np.int64)
    while state[0] < len(order):
        i = order[state[0]]
        at = _find_on_disk(file, room, owned, heads, i, window)
        if at == _NOWHERE:
            return REFUSED
        if at == -1 - window[1]:
            break
        new = at < 0
        if new:
            at = -1 - at
            for k in range(first):
                room[at, k] = heads[i, k]
        room[at, first] = cells[i, 0] & ~1
        for w in range(1, cells.shape[1]):
            room[at, first + w] = cells[i, w]
        source = np.uint64(room.ctypes.data) + np.uint64(at * size)
        if _pwrite(np.int32(file[0]), source, np.uint64(size), (window[0] + at) * size) != size:
            return REFUSED
        state[1] += new
        state[0] += 1
    return state[0]


@kernel(i8(I64_ROWS, _RANGE, I64_ROWS_IN, i8))
def cold_forget(table: I64, owned: tuple[int, float], heads: I64, width: int) -> int:
    """Empty the cells of keys; return how many were found."""
    found = 0
    for i in range(len(heads)):
        at = _find(table, owned, heads, i, 0)
        if at >= 0:
            for w in range(width):
                table[at, heads.shape[1] + w] = 0
            found += 1
    return found


@kernel(i8(I64_ROWS, I64_ROWS, _RANGE, i8))
def cold_move(table: I64, larger: I64, owned: tuple[int, float], first: int) -> int:
    """Fill an empty, larger table with the records that have rows; return how many, or -1 if its end was reached."""
    count = 0
    for i in range(len(table)):
        if table[i, TAG] == 0 or table[i, first] == 0:
            continue
        at = _home(table[i, HASH], owned[0], owned[1])
        while at < len(larger) and larger[at, TAG] != 0:
            at += 1
        if at == len(larger):
            return -1
        for w in range(table.shape[1]):
            larger[at, w] = table[i, w]
        count += 1
    return count


@kernel(i8(I64_ROWS, _RANGE, i8, i8, _OUT, I64_OUT))
def cold_scan(table: I64, owned: tuple[int, float], low: int, high: int, out: tuple[I64, I64], state: I64) -> int:
    """Copy (heads, cells) of records with rows and a hash in [low, high], from `state[0]` on (-1: from the first).

    Returns how many; `state[0]` is where to continue, the table's length at the end.
    """
    heads, cells = out
    first = heads.shape[1]
    at = _home(low, owned[0], owned[1]) if state[0] < 0 else state[0]
    last = _home(high, owned[0], owned[1])
    count = 0
    while at < len(table) and count < len(heads):
        if table[at, TAG] == 0:
            if at > last:  # every record with a home up to `last` is before this gap
                at = len(table)
                break
        elif low <= table[at, HASH] <= high and table[at, first] != 0:
            for k in range(first):
                heads[count, k] = table[at, k]
            for w in range(cells.shape[1]):
                cells[count, w] = table[at, first + w]
            count += 1
        at += 1
    state[0] = at
    return count


@kernel(i8(I64_ROWS, I64_IN, I32_IN, U8_IN, I64_OUT))
def absent_rows(cells: I64, cell: I64, slots: I32, maybe_cold: U8, out: I64) -> int:
    """List the rows whose cell is empty here but may be in the cold store; return how many."""
    count = 0
    for i in range(len(cell)):
        if maybe_cold[slots[i]] and cells[cell[i], 0] == 0:
            out[count] = i
            count += 1
    return count
