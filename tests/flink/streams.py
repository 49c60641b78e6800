"""The inputs of the comparison with Flink: small streams, made from a seed, as rows of JSON.

`id` numbers the rows, `side` splits them in two for joins, `k` and `g` are keys with nulls among them, `v` and `w` are
values with nulls among them, `score` is different in every row. `ts` is event time and `wm` the watermark a row
carries, both in milliseconds.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Row = dict[str, Any]
#: Rows of each partition in their order.
Partitions = list[list[Row]]

START_MS = 1_700_000_000_000
#: Rows of `disorder` are never more than this behind the newest one of their partition.
BOUND_MS = 5_000
#: When clocks in Berlin were set back in 2023: at 3:00 it was 2:00 again.
CLOCK_CHANGE_MS = 1_698_541_200_000
_KEYS = (None, "", "a", "b", "ä")


def late(seed: int) -> Partitions:
    """One partition whose rows carry watermarks; every few rows one is late, by a little or by many windows."""
    chance, newest, rows = random.Random(seed), START_MS, []
    for number in range(400):
        newest += int(chance.random() * 1_500)
        behind = 0
        if number % 7 == 6:
            behind = 3_000 + int(chance.random() * 45_000)
        elif chance.random() < 0.5:
            behind = int(chance.random() * 3_000)
        row = _row(chance, number, newest - behind)
        # a row may bring the news that it is late itself, and some bring none
        row["wm"] = None if chance.random() < 0.2 else newest - 3_000
        rows.append(row)
    return [rows]


def disorder(seed: int) -> Partitions:
    """Three partitions at different speeds, out of order within the bound."""
    return [list(_within_bound(random.Random(seed * 10 + part), part, 1_000 + 300 * part)) for part in range(3)]


def versions(seed: int) -> Partitions:
    """The same; all rows of the last partition are of the right side and have keys, those of the others of the left.

    No two rows of that partition have the same time.
    """
    *left, right = disorder(seed)
    for row in (row for rows in left for row in rows):
        row["side"] = "L"
    by_time = {row["ts"]: row | {"side": "R", "k": row["k"] or "a", "ts": row["ts"] + 20_000} for row in right}
    return [*left, list(by_time.values())]


def clock_change(seed: int) -> Partitions:
    """Two days around the night in which Berlin's clocks were set back."""
    chance, time, rows = random.Random(seed), CLOCK_CHANGE_MS - 86_400_000, []
    for number in range(250):
        time += int(chance.random() * 1_400_000)
        rows.append(_row(chance, number, time) | {"wm": time - 1})
    return [rows]


def _within_bound(chance: random.Random, part: int, pace_ms: int) -> Iterator[Row]:
    newest = START_MS
    for number in range(130):
        newest += int(chance.random() * 2 * pace_ms)
        behind = chance.choice((0, 0, BOUND_MS // 2, BOUND_MS))
        yield _row(chance, 1000 * part + number, newest - behind) | {"wm": None}


def _row(chance: random.Random, number: int, time: int) -> Row:
    return {
        "id": number,
        "side": "LR"[chance.random() < 0.5],
        "k": _KEYS[int(chance.random() * len(_KEYS))],
        "g": None if chance.random() < 0.25 else int(chance.random() * 2) - 1,
        "v": None if chance.random() < 0.3 else int(chance.random() * 2_000) - 1_000,
        "w": None if chance.random() < 0.3 else int(chance.random() * 4_000) / 16,
        "score": chance.getrandbits(40),
        "ts": time,
    }


STREAMS: Mapping[str, Callable[[int], Partitions]] = {
    "late": late,
    "disorder": disorder,
    "versions": versions,
    "clock_change": clock_change,
}


def lines(rows: list[Row]) -> str:
    """Return the rows as lines of JSON."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def checksum(partitions: Partitions) -> str:
    """Return what tells one input from another."""
    return hashlib.sha256("\0".join(lines(rows) for rows in partitions).encode()).hexdigest()[:16]
