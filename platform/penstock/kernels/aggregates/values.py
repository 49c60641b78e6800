"""Kernels of variable-length values such as strings: conversion to the form that cells refer to, and back.

A value is [number of bytes, then its bytes eight at a time as big-endian words, padded with zeros], so that values are
ordered as their bytes are. A cell holds its address, 0 for none. `state.cells.value_heap` owns the memory;
`kernels.aggregates.merge` compares.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.kernels.compiler.compile import (
    I64,
    I64_IN,
    I64_OUT,
    U8,
    U8_IN,
    U8_OUT,
    i8,
    kernel,
    njit,
    tuple_of,
    word_at,
)

_COLUMN = tuple_of(U8_IN, I64_IN, U8_IN)
_PLACED = tuple_of(I64_OUT, I64_OUT)


@njit
def _is_valid(bitmap: Any, bit: Any) -> Any:
    return len(bitmap) == 0 or ((bitmap[bit >> 3] >> (bit & 7)) & 1) == 1


@kernel(i8(_COLUMN, i8, i8, _PLACED))
def pack_values(column: tuple[U8, I64, U8], bit_offset: int, address: int, placed: tuple[I64, I64]) -> int:
    """Write the values of (data, offsets, bitmap) as words at `address`; return how many words.

    `placed` = (words, address of every row's value). The words need room for two per row and the bytes of all.
    """
    data, offsets, bitmap = column
    words, addresses = placed
    used = 0
    for i in range(len(addresses)):
        if not _is_valid(bitmap, bit_offset + i):
            addresses[i] = 0
            continue
        at, end = offsets[i], offsets[i + 1]
        addresses[i] = address + 8 * used
        words[used] = end - at
        used += 1
        while at < end:
            word = np.uint64(0)
            for k in range(8):
                word <<= np.uint64(8)
                if at + k < end:
                    word |= np.uint64(data[at + k])
            words[used] = np.int64(word)
            used += 1
            at += 8
    return used


@njit
def _words_of(address: Any) -> Any:
    """Return how many words a value takes."""
    return 1 + ((word_at(address) + 7) >> 3)


@njit
def _equal(left: Any, right: Any) -> Any:
    count, k = _words_of(left), 0
    while k < count and word_at(left + 8 * k) == word_at(right + 8 * k):  # the first words are the lengths
        k += 1
    return k == count


@njit
def _earlier_equal(addresses: Any, at: Any, width: Any) -> Any:
    """Return the earlier position within the row of `at` that has the same value, or -1."""
    for other in range(at - at % width, at):
        if addresses[other] == addresses[at] or (addresses[other] != 0 and _equal(addresses[other], addresses[at])):
            return other
    return -1


@kernel(i8(I64_IN, i8, I64_OUT))
def size_of_values(addresses: I64, width: int, sizes: I64) -> int:
    """Add up the bytes and the words of values into `sizes`; return the number of values.

    The addresses are in rows of `width`; equal values within a row count once.
    """
    count = 0
    for i in range(len(addresses)):
        if addresses[i] != 0 and _earlier_equal(addresses, i, width) < 0:
            sizes[0] += word_at(addresses[i])
            sizes[1] += _words_of(addresses[i])
            count += 1
    return count


@kernel(i8(I64_IN, i8, i8, _PLACED))
def move_values(addresses: I64, width: int, address: int, placed: tuple[I64, I64]) -> int:
    """Copy values as words to `address`; return how many words.

    `placed` = (words, the new addresses). The addresses are in rows of `width`; equal values within a row are copied
    once.
    """
    words, moved = placed
    used = 0
    for i in range(len(addresses)):
        if addresses[i] == 0:
            moved[i] = 0
            continue
        twin = _earlier_equal(addresses, i, width)
        if twin >= 0:
            moved[i] = moved[twin]
            continue
        moved[i] = address + 8 * used
        count = _words_of(addresses[i])
        for k in range(count):
            words[used + k] = word_at(addresses[i] + 8 * k)
        used += count
    return used


@kernel(i8(I64_IN, U8_OUT, I64_OUT))
def unpack_values(addresses: I64, data: U8, offsets: I64) -> int:
    """Write the bytes of values one after another, and where each ends; an absent value has no bytes."""
    at = 0
    offsets[0] = 0
    for i in range(len(addresses)):
        if addresses[i] != 0:
            length = word_at(addresses[i])
            for k in range(length):
                word = np.uint64(word_at(addresses[i] + 8 + (k >> 3 << 3)))
                data[at + k] = np.uint8((word >> np.uint64(56 - 8 * (k & 7))) & np.uint64(255))
            at += length
        offsets[i + 1] = at
    return at
