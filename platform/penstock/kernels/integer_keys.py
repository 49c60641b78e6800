"""The commonest key, one integer that is never null: its hash is computed where it is used, in the same pass.

The same hash as `kernels.hashing`, written again: a helper must stand in its kernel's module (`kernels.compile`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.kernels.compile import (
    I32,
    I32_OUT,
    I64,
    I64_IN,
    I64_OUT,
    U64,
    U64_OUT,
    i8,
    kernel,
    njit,
    tuple_of,
)

_U = np.uint64
_P1 = _U(0x9E3779B185EBCA87)
_P2 = _U(0xC2B2AE3D27D4EB4F)
_P3 = _U(0x165667B19E3779F9)
_P4 = _U(0x85EBCA77C2B2AE63)
_START = _U(42) + _U(0x27D4EB2F165667C5) + _U(8)
_EMPTY = _U(0)
_LOW = _U((1 << 32) - 1)
_HIGH = _U(((1 << 32) - 1) << 32)
_ONE_TAG = _U(1 << 32)
_BLOCK = 256


@njit
def _hash(value: Any) -> Any:
    word = _U(value) * _P2
    h = _START ^ (((word << _U(31)) | (word >> _U(33))) * _P1)
    h = ((h << _U(27)) | (h >> _U(37))) * _P1 + _P4
    h = (h ^ (h >> _U(33))) * _P2
    h = (h ^ (h >> _U(29))) * _P3
    return h ^ (h >> _U(32))


@njit
def _look_up(index: Any, values: Any, slots: Any, block: Any, begin: Any) -> Any:
    """Find the keys of one block that stand in the first place they can have; returns how many rows are left.

    Without a branch that depends on what is read: the processor waits for many places of the table at once.
    """
    table, slot_hashes = index
    hashes, left = block
    mask = _U(len(table) - 1)
    rows = min(_U(len(hashes)), _U(len(values)) - begin)
    for j in range(_U(0), rows):
        hashes[j] = _hash(values[begin + j])
    entries = np.empty(_BLOCK, np.uint64)
    for j in range(_U(0), rows):
        entries[j] = table[hashes[j] & mask]
    count = _U(0)
    for j in range(_U(0), rows):
        slot = (entries[j] & _LOW) - _U(entries[j] != _EMPTY)
        slots[begin + j] = slot
        left[count] = j
        count += _U((slot_hashes[slot] != np.int64(hashes[j])) | (entries[j] == _EMPTY))
    return count


@kernel(i8(tuple_of(U64_OUT, I64_OUT), I64_IN, I32_OUT, I32_OUT, I64_OUT))
def probe_integers(index: tuple[U64, I64], values: I64, slots: I32, created_by: I32, state: I64) -> Any:
    """As `index.probe`, by the keys themselves."""
    table, slot_hashes = index
    mask = _U(len(table) - 1)
    count, limit, base = state[1], state[2], state[3]
    block = (np.empty(_BLOCK, np.uint64), np.empty(_BLOCK, np.int32))
    begin = _U(state[0])
    while begin < _U(len(values)):
        for k in range(_U(0), _look_up(index, values, slots, block, begin)):
            h = block[0][_U(block[1][k])]
            i = begin + _U(block[1][k])
            at = h & mask
            while True:
                entry = table[at]
                if entry == _EMPTY:
                    if count == limit:
                        state[0], state[1] = i, count
                        return np.int64(i)
                    table[at] = (h & _HIGH) | _U(count + 1)
                    slot_hashes[count] = np.int64(h)
                    created_by[count - base] = i
                    slots[i] = count
                    count += 1
                    break
                if (entry ^ h) < _ONE_TAG:
                    slot = (entry & _LOW) - _U(1)
                    if slot_hashes[slot] == np.int64(h):
                        slots[i] = slot
                        break
                at = (at + _U(1)) & mask
        begin += _U(_BLOCK)
    state[0], state[1] = len(values), count
    return len(values)


@kernel(i8(I64_IN, i8, i8, I32_OUT, I64_OUT))
def split_integers(values: I64, key_groups: int, parallelism: int, order: I32, offsets: I64) -> int:
    """As `split.split_rows`, by the keys themselves."""
    n = len(values)
    targets = np.empty(n, np.int32)
    for i in range(_U(0), _U(n)):
        group = (((np.int64(_hash(values[i])) >> 32) + (1 << 31)) * key_groups) >> 32
        target = group * parallelism // key_groups
        targets[i] = target
        offsets[_U(target + 1)] += 1
    for t in range(parallelism):
        offsets[t + 1] += offsets[t]
    cursor = offsets.copy()
    for i in range(_U(0), _U(n)):
        owner = _U(targets[i])
        order[_U(cursor[owner])] = i
        cursor[owner] += 1
    return n
