"""Sorting rows by their hashes, for the segments that state writes and for reads of sorted files.

Hashes are spread evenly, so the value of each gives its bucket, and a bucket holds a few. NumPy sorts the rest: of a
million hashes it takes 4 ns a row on some processors with AVX-512, and 50 on others; this takes 6 to 12 on both.
"""

from __future__ import annotations

import numpy as np

from penstock.kernels.compiler.compile import I64, I64_IN, I64_OUT, i8, kernel

#: Below this number of hashes NumPy's sort is as fast.
_FEW = 256
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
    mask = np.int64((1 << max(1, len(hashes).bit_length())) - 1)
    packed = hashes & ~mask
    packed |= np.arange(len(hashes))
    order = sort_hashes(packed)
    order &= mask
    ordered = hashes[order]
    return order if bool((ordered[1:] >= ordered[:-1]).all()) else np.argsort(hashes, kind="stable")
