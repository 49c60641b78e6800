"""The right answers of the workloads in plain NumPy, sharing no code with the engine or its generator.

Event i (0 <= i < N), integers only:
  a = i * 2654435761 mod 2^32
  b = ((a + a div 2^15) mod 2^32) * 1540483477 mod 2^32;  c = ((a + a div 2^13) mod 2^32) * 1103515245 mod 2^32
  key = (b div 16) mod K;  amount = 1 + (c div 2^20) mod 1000;  ts = T0 + i div 100 - (c div 16) mod 5000   [ms]
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

T0_MS = 1_700_000_000_000
MODULUS = 1_000_000_007
USERS = 100_000
_M32 = np.uint64((1 << 32) - 1)
_CHUNK = 1 << 20

Int64s = np.ndarray[Any, np.dtype[np.int64]]


class Users(NamedTuple):
    """How many keys there are; `skewed`: key k is drawn with a weight of 2^40 div floor((k + 1)^1.5), in 2^16 steps.

    `piece`: the number of events computed at a time.
    """

    keys: int = USERS
    skewed: bool = False
    piece: int = _CHUNK

    def chunks(self, count: int) -> Iterator[tuple[Int64s, Int64s, Int64s]]:
        """Yield all events of a workload, chunk by chunk."""
        if not self.skewed:
            yield from chunks(count, self.keys, self.piece)
            return
        ends, total = [], 0
        for k in range(1, self.keys + 1):
            total += (1 << 40) // math.isqrt(k**3)
            ends.append(total)
        step = total // (1 << 17)
        table = np.array([bisect.bisect_right(ends, (2 * q + 1) * step) for q in range(1 << 16)], np.int64)
        for key, amount, times in chunks(count, 1 << 16, self.piece):
            yield table[key], amount, times


EVEN = Users()


def agrees(found: str, right: str) -> bool:
    """Return whether a checksum is right; a part of the right one that is `*` may be anything."""
    parts = list(zip(found.split(":"), right.split(":"), strict=False))
    return found.count(":") == right.count(":") and all(wanted in ("*", part) for part, wanted in parts)


def events(low: int, high: int, keys: int = USERS) -> tuple[Int64s, Int64s, Int64s]:
    """Return key, amount and time (ms) of the events `low <= i < high`."""
    i = np.arange(low, high, dtype=np.uint64)
    a = (i * np.uint64(2654435761)) & _M32
    b = (((a + (a >> np.uint64(15))) & _M32) * np.uint64(1540483477)) & _M32
    c = (((a + (a >> np.uint64(13))) & _M32) * np.uint64(1103515245)) & _M32
    key = ((b >> np.uint64(4)) % np.uint64(keys)).astype(np.int64)
    amount = 1 + ((c >> np.uint64(20)) % np.uint64(1000)).astype(np.int64)
    times = T0_MS + (i // np.uint64(100)).astype(np.int64) - ((c >> np.uint64(4)) % np.uint64(5000)).astype(np.int64)
    return key, amount, times


def chunks(count: int, keys: int = USERS, piece: int = _CHUNK) -> Iterator[tuple[Int64s, Int64s, Int64s]]:
    """Yield all events of a workload, chunk by chunk."""
    for low in range(0, count, piece):
        yield events(low, min(low + piece, count), keys)


def last_sure_window(count: int, slide_ms: int) -> int:
    """Return the last window end (ms) that a watermark of 5 s closes before the input ends; 50 ms for split sources."""
    return (T0_MS + (count - 1) // 100 - 5000 - 50) // slide_ms * slide_ms


def windows(count: int, size_ms: int, slide_ms: int, *, nullable: bool = False, users: Users = EVEN) -> str:
    """Return the checksum of (user, window end, count, sum) over sliding or tumbling windows.

    With `nullable`, the amounts that ten divides and user 0 are null. A null counts as -1 in the checksum, and a sum
    without values is null.
    """
    panes = size_ms // slide_ms
    before = 5000 // slide_ms + 1  # events reach back to 5 s before T0
    rows = (count // 100) // slide_ms + before + 1
    counts, sums, valid = (np.zeros((rows, USERS), np.int64) for _ in range(3))
    for key, amount, times in users.chunks(count):
        cell = ((times - T0_MS) // slide_ms + before) * USERS + key
        used = amount % 10 != 0 if nullable else np.ones(len(key), np.bool_)
        low = cell.min() // USERS * USERS
        width = cell.max() - low + 1
        for table, weights in ((counts, None), (sums, np.where(used, amount, 0)), (valid, used)):
            table.reshape(-1)[low : low + width] += np.bincount(cell - low, weights, width).astype(np.int64)
    cut = last_sure_window(count, slide_ms)
    user = np.where((np.arange(USERS) == 0) & nullable, -1, np.arange(USERS))
    result = [0, 0, 0, 0]
    for last in range(rows + panes - 1):
        number = last - before + 1  # (window end - T0) div slide
        if T0_MS + number * slide_ms > cut:
            break
        inside = slice(max(0, last - panes + 1), last + 1)
        n, total, seen = (table[inside].sum(axis=0) for table in (counts, sums, valid))
        kept = n > 0
        total = np.where(seen == 0, -1, total)[kept]
        check = ((user[kept] * 31 + number * 17 + n[kept]) * (total + 7)) % MODULUS
        for i, value in enumerate((kept.sum(), n[kept].sum(), total.sum(), check.sum())):
            result[i] += int(value)
    return ":".join(map(str, result))


def kept_rows(count: int) -> str:
    """Return the checksum of w3: users that 4 does not divide, with amount * 908 div 1000.

    It has the sums of time since T0 and of amount.
    """
    result = [0, 0, 0, 0]
    for key, amount, times in chunks(count):
        kept = key % 4 != 0
        net = amount[kept] * 908 // 1000
        _add(result, key[kept], times[kept] - T0_MS, net, net)
    return ":".join(map(str, result))


def all_rows(count: int) -> str:
    """Return the checksum of every event: sums of time since T0 and amount."""
    result = [0, 0, 0, 0]
    for key, amount, times in chunks(count):
        _add(result, key, times - T0_MS, amount, amount)
    return ":".join(map(str, result))


def running(count: int, keys: int, *, ordered: bool) -> str:
    """Return the checksum of w2: (key, count, sum) after every event.

    It has the sum of the sums only if events are in order.
    """
    counts, sums = np.zeros(keys, np.int64), np.zeros(keys, np.int64)
    result = [0, 0, 0, 0]
    for key, amount, _ in chunks(count, keys):
        order = np.argsort(key, kind="stable")
        sorted_key, running_sum = key[order], np.cumsum(amount[order])
        first = np.flatnonzero(np.r_[True, sorted_key[1:] != sorted_key[:-1]])
        begin = np.repeat(first, np.diff(np.r_[first, len(key)]))
        n = counts[sorted_key] + np.arange(len(key)) - begin + 1
        total = sums[sorted_key] + running_sum - running_sum[begin] + amount[order][begin]
        last = np.r_[first[1:], len(key)] - 1  # the values of a key after its last event in this chunk
        counts[sorted_key[last]], sums[sorted_key[last]] = n[last], total[last]
        _add(result, sorted_key, n, total, n)
    return ":".join(str(value) if ordered or i != 2 else "*" for i, value in enumerate(result))


def _add(result: list[int], key: Int64s, first: Int64s, second: Int64s, third: Int64s) -> None:
    check = (key * 31 + third) % MODULUS
    for i, value in enumerate((len(key), first.sum(), second.sum(), check.sum())):
        result[i] += int(value)
