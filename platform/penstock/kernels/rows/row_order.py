"""Kernels that sort rows by hash and number distinct slots in order of first appearance.

Called by segment writers, cold files and `state.tables.row_state`.
"""

from __future__ import annotations

import numpy as np

from penstock.kernels.compiler.compile import I32, I32_IN, I32_OUT, I64, I64_IN, I64_OUT, i8, kernel

#: Below this number of hashes NumPy's sort is as fast.
_FEW = 256
#: Below this number of hashes NumPy's indirect sort is faster than sorting them together with their row numbers.
_FEW_ROWS = 512
#: Hashes of a bucket on average, and the number from which this sort is not worthwhile.
_BUCKET, _CROWDED = 4, 64
_U = np.uint64


@kernel(i8(I64_IN, i8, i8, I64_OUT, I64_OUT))
def sort_spread(words: I64, low: int, shift: int, ends: I64, out: I64) -> int:
    """Sort `words`, none below `low`, into `out`; `ends` has one zero more than the last word's bucket.

    A word's bucket is its distance from `low` without the lowest `shift` bits. Returns 0 if a bucket is crowded; `out`
    is then undefined.
    """
    base, bits = _U(low), _U(shift)
    for i in range(len(words)):
        ends[np.int64((_U(words[i]) - base) >> bits) + 1] += 1
    for bucket in range(1, len(ends)):
        if ends[bucket] > _CROWDED:
            return 0
        ends[bucket] += ends[bucket - 1]
    for i in range(len(words)):
        word = words[i]
        mine = np.int64((_U(word) - base) >> bits)
        out[ends[mine]] = word
        ends[mine] += 1
    for i in range(1, len(words)):  # buckets are in order, so no word leaves its bucket
        at, word = i, out[i]
        while at > 0 and out[at - 1] > word:
            out[at] = out[at - 1]
            at -= 1
        out[at] = word
    return 1


def sort_hashes(words: I64) -> I64:
    """Return words in ascending order: hashes, possibly with other data in their lowest bits."""
    if len(words) < _FEW:
        return np.sort(words)
    low, high = int(words.min()), int(words.max())
    shift = max(0, ((high - low) // (len(words) // _BUCKET)).bit_length())
    out = np.empty_like(words)
    ends = np.zeros(((high - low) >> shift) + 2, np.int64)
    return out if sort_spread(words, low, shift, ends, out) else np.sort(words)


def hash_order(hashes: I64) -> I64:
    """Return the order in which hashes ascend; rows of one hash keep theirs.

    The row number replaces the lowest bits of the hash, so that plain integers are sorted. If hashes that differ only
    in those bits come in the wrong order, NumPy sorts them all.
    """
    if len(hashes) < _FEW_ROWS:
        return np.argsort(hashes, kind="stable")
    mask = np.int64((1 << max(1, len(hashes).bit_length())) - 1)
    packed = hashes & ~mask
    packed |= np.arange(len(hashes))
    order = sort_hashes(packed)
    order &= mask
    ordered = hashes[order]
    return order if bool((ordered[1:] >= ordered[:-1]).all()) else np.argsort(hashes, kind="stable")


@kernel(i8(I32_IN, I32_OUT, I32_OUT, I32_OUT))
def number_slots(slots: I32, numbers: I32, local: I32, distinct: I32) -> int:
    """Write each row's number to `local` and the slot of each number to `distinct`; return how many there are.

    `numbers` has an entry for every slot, all zero before and after.
    """
    count = 0
    for i in range(len(slots)):
        slot = slots[i]
        number = numbers[slot]
        if number == 0:
            distinct[count] = slot
            count += 1
            number = count
            numbers[slot] = number
        local[i] = number - 1
    for j in range(count):
        numbers[distinct[j]] = 0
    return count


def number_slots_plain(slots: I32) -> tuple[I32, I32]:
    """Return (local, distinct) as `number_slots` writes them, in plain numpy."""
    found, first, inverse = np.unique(slots, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    return rank[inverse], found[order].astype(np.int32)
