"""Kernels of the key index: open addressing over the hashes, and the key columns that decide equality.

An entry of the table is one word, 0 when empty. The table is probed by the LOW bits of the hash (the high ones chose
the subtask) and at most a quarter full: the cost here is in cache misses and mispredicted branches. The place of an
entry gives the low bits of its hash, if that is the first place it can have. The other bits of the hash are in the
upper bits of the entry, so that all 64 are compared without another read. A bit below them marks entries in any other
place, whose hash is looked up by the slot. The lowest bits, one less than the place has, are the slot + 1.

Rows are first matched by their 64-bit hash, then the keys are compared column by column. Rows whose slot holds another
key of that hash continue probing (`probe_next`). Positions are unsigned: numba would test every signed one for a
negative value.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.kernels.compiler.compile import (
    I32,
    I32_IN,
    I32_OUT,
    I64,
    I64_IN,
    I64_OUT,
    U8,
    U8_IN,
    U8_OUT,
    U64,
    U64_OUT,
    i8,
    kernel,
    load4,
    load8,
    njit,
    tuple_of,
)

_FIXED_IN = tuple_of(I64_IN, U8_IN)
_FIXED_STORE = tuple_of(I64_OUT, U8_OUT)
_BYTES_IN = tuple_of(U8_IN, I64_IN, U8_IN)
_BYTES_STORE = tuple_of(U8_OUT, I64_OUT, U8_OUT)
_INDEX = tuple_of(U64_OUT, I64_OUT)
_PAIRS = tuple_of(I32_IN, I32_IN)
_ROWS_SLOTS = tuple_of(I32_IN, I32_OUT)
_U = np.uint64
_EMPTY = _U(0)
_ONE = _U(1)
_BLOCK = 256


@njit
def _is_valid(bitmap: Any, bit: Any) -> Any:
    return len(bitmap) == 0 or ((bitmap[bit >> 3] >> (bit & 7)) & 1) == 1


@njit
def _masks(table: Any) -> Any:
    """Return the masks of an entry: slot + 1, the bit of displaced entries, bits of the hash."""
    mark = _U(len(table)) >> _ONE
    return mark - _ONE, mark, ~(_U(len(table)) - _ONE)


@njit
def _put(table: Any, masks: Any, at: Any, h: Any, slot: Any) -> Any:
    """Write the entry of a slot with hash `h` to a place."""
    _, mark, high = masks
    displaced = at != _U(h) & _U(len(table) - 1)
    table[at] = (_U(h) & high) | (mark if displaced else _EMPTY) | _U(slot + 1)


@njit
def _find_first_place(table: Any, masks: Any, hashes: Any, slots: Any, left: Any, begin: Any) -> Any:
    """Find the rows of one block whose entry is in the first place it can have; return how many are left.

    Without a branch that depends on read data, so that the processor waits for many places of the table at once.
    """
    low, mark, high = masks
    mask = _U(len(table) - 1)
    rows = min(_U(_BLOCK), _U(len(hashes)) - begin)
    entries = np.empty(_BLOCK, np.uint64)
    for j in range(_U(0), rows):
        entries[j] = table[_U(hashes[begin + j]) & mask]
    count = _U(0)
    for j in range(_U(0), rows):
        entry, h = entries[j], _U(hashes[begin + j])
        slots[begin + j] = (entry & low) - _ONE
        left[count] = j
        count += _U((((entry ^ h) & high) | (entry & mark) | _U(entry == _EMPTY)) != _EMPTY)
    return count


@kernel(i8(_INDEX, I64_IN, I32_OUT, I32_OUT, I64_OUT))
def probe(index: tuple[U64, I64], hashes: I64, slots: I32, created_by: I32, state: I64) -> Any:
    """Find or make the slot of every row from `state[0]` on, by hash alone.

    Returns the row reached (all, or the table is full).

    `state` = [first row, slots in use, limit of slots, slots in use at the start of the batch]; `created_by[slot -
    state[3]]` is the row a new slot was made for.
    """
    table, slot_hashes = index
    mask = _U(len(table) - 1)
    masks = _masks(table)
    low, _, high = masks
    count, limit, base = state[1], state[2], state[3]
    left = np.empty(_BLOCK, np.int32)
    begin = _U(state[0])
    while begin < _U(len(hashes)):
        for k in range(_U(0), _find_first_place(table, masks, hashes, slots, left, begin)):
            i = begin + _U(left[k])
            h = hashes[i]
            at = _U(h) & mask
            while True:
                entry = table[at]
                if entry == _EMPTY:
                    if count == limit:
                        state[0], state[1] = i, count
                        return np.int64(i)
                    _put(table, masks, at, h, count)
                    slot_hashes[count] = h
                    created_by[count - base] = i
                    slots[i] = count
                    count += 1
                    break
                if (entry ^ _U(h)) & high == _EMPTY:
                    slot = (entry & low) - _ONE
                    if slot_hashes[slot] == h:
                        slots[i] = slot
                        break
                at = (at + _ONE) & mask
        begin += _U(_BLOCK)
    state[0], state[1] = len(hashes), count
    return len(hashes)


@kernel(i8(_INDEX, I64_IN, _ROWS_SLOTS, I32_OUT, I64_OUT))
def probe_next(index: tuple[U64, I64], hashes: I64, rows_slots: tuple[I32, I32], created_by: I32, state: I64) -> Any:
    """Do the work of `probe` for the listed rows, starting after the slot each of them has.

    That slot holds another key of the same hash.
    """
    table, slot_hashes = index
    rows, slots = rows_slots
    mask = _U(len(table) - 1)
    masks = _masks(table)
    low, _, high = masks
    count, limit, base = state[1], state[2], state[3]
    j = state[0]
    while j < len(rows):
        row = rows[j]
        h = hashes[row]
        at = _U(h) & mask
        while table[at] & low != _U(slots[row] + 1):
            at = (at + _ONE) & mask
        at = (at + _ONE) & mask
        while True:
            entry = table[at]
            if entry == _EMPTY:
                if count == limit:
                    state[0], state[1] = j, count
                    return j
                _put(table, masks, at, h, count)
                slot_hashes[count] = h
                created_by[count - base] = row
                slots[row] = count
                count += 1
                break
            if (entry ^ _U(h)) & high == _EMPTY and slot_hashes[(entry & low) - _ONE] == h:
                slots[row] = (entry & low) - _ONE
                break
            at = (at + _ONE) & mask
        j += 1
    state[0], state[1] = j, count
    return j


@kernel(i8(U64_OUT, I64_IN, i8))
def rehash(table: U64, slot_hashes: I64, count: int) -> int:
    """Fill an empty table with the first `count` slots, in slot order.

    So equal hashes keep their order of probing.
    """
    mask = _U(len(table) - 1)
    masks = _masks(table)
    for slot in range(count):
        h = slot_hashes[slot]
        at = _U(h) & mask
        while table[at] != _EMPTY:
            at = (at + _ONE) & mask
        _put(table, masks, at, h, slot)
    return count


@kernel(i8(_FIXED_IN, i8, _PAIRS, _FIXED_STORE, U8_OUT))
def differ_fixed(
    column: tuple[I64, U8], bit_offset: int, pairs: tuple[I32, I32], store: tuple[I64, U8], bad: U8
) -> int:
    """Set `bad[j]` if row `rows[j]` differs from the key of its slot; return how many differ in this column."""
    values, bitmap = column
    rows, slots = pairs
    stored, stored_valid = store
    count = 0
    for j in range(len(rows)):
        row = rows[j]
        slot = slots[row]
        valid = _is_valid(bitmap, bit_offset + row)
        if valid != (stored_valid[slot] == 1) or (valid and values[row] != stored[slot]):
            bad[j] = 1
            count += 1
    return count


@kernel(i8(_BYTES_IN, i8, _PAIRS, _BYTES_STORE, U8_OUT))
def differ_bytes(
    column: tuple[U8, I64, U8], bit_offset: int, pairs: tuple[I32, I32], store: tuple[U8, I64, U8], bad: U8
) -> int:
    """Do the work of `differ_fixed` for bytes."""
    data, offsets, bitmap = column
    rows, slots = pairs
    arena, starts, stored_valid = store
    count = 0
    for j in range(len(rows)):
        row = rows[j]
        slot = slots[row]
        valid = _is_valid(bitmap, bit_offset + row)
        same = valid == (stored_valid[slot] == 1)
        if same and valid:
            at, length = offsets[row], offsets[row + 1] - offsets[row]
            start = starts[slot]
            same = starts[slot + 1] - start == length
            k = 0
            while same and k + 8 <= length:
                same = load8(data, at + k) == load8(arena, start + k)
                k += 8
            if same and k + 4 <= length:
                same = load4(data, at + k) == load4(arena, start + k)
                k += 4
            while same and k < length:
                same = data[at + k] == arena[start + k]
                k += 1
        if not same:
            bad[j] = 1
            count += 1
    return count


@kernel(i8(_FIXED_IN, i8, I32_IN, i8, _FIXED_STORE))
def append_fixed(column: tuple[I64, U8], bit_offset: int, rows: I32, first_slot: int, store: tuple[I64, U8]) -> int:
    """Store the keys of `rows` at the slots from `first_slot` on; return how many are null."""
    values, bitmap = column
    stored, stored_valid = store
    nulls = 0
    for j in range(len(rows)):
        row = rows[j]
        if _is_valid(bitmap, bit_offset + row):
            stored[first_slot + j] = values[row]
            stored_valid[first_slot + j] = 1
        else:
            stored[first_slot + j] = 0
            stored_valid[first_slot + j] = 0
            nulls += 1
    return nulls


@kernel(i8(I64_IN, I32_IN))
def bytes_of_rows(offsets: I64, rows: I32) -> int:
    """Return the bytes the listed rows take."""
    total = 0
    for j in range(len(rows)):
        total += offsets[rows[j] + 1] - offsets[rows[j]]
    return total


@kernel(i8(_BYTES_IN, i8, I32_IN, i8, _BYTES_STORE))
def append_bytes(
    column: tuple[U8, I64, U8], bit_offset: int, rows: I32, first_slot: int, store: tuple[U8, I64, U8]
) -> int:
    """Do the work of `append_fixed` for bytes; the arena must have room.

    Returns how many are null.
    """
    data, offsets, bitmap = column
    arena, starts, stored_valid = store
    end = starts[first_slot]
    nulls = 0
    for j in range(len(rows)):
        row = rows[j]
        if _is_valid(bitmap, bit_offset + row):
            for k in range(offsets[row], offsets[row + 1]):
                arena[end] = data[k]
                end += 1
            stored_valid[first_slot + j] = 1
        else:
            stored_valid[first_slot + j] = 0
            nulls += 1
        starts[first_slot + j + 1] = end
    return nulls


@kernel(i8(U8_IN, I64_IN, I32_IN, U8_OUT, I64_OUT))
def gather_bytes(arena: U8, starts: I64, slots: I32, data: U8, offsets: I64) -> Any:
    """Copy the bytes of `slots` one after another; `offsets` has one entry more than there are slots."""
    end = 0
    offsets[0] = 0
    for j in range(len(slots)):
        for k in range(starts[slots[j]], starts[slots[j] + 1]):
            data[end] = arena[k]
            end += 1
        offsets[j + 1] = end
    return end


@kernel(i8(U8_IN, I64_OUT))
def marked(flags: U8, out: I64) -> Any:
    """Write the places of the non-zero flags; return how many."""
    count = 0
    for i in range(len(flags)):
        if flags[i]:
            out[count] = i
            count += 1
    return count


def places(flags: U8) -> I64:
    """Return the places of the non-zero flags."""
    out = np.empty(len(flags), np.int64)
    return out[: marked(flags, out)]
