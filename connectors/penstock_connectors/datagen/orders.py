"""Orders as a pure function of their row number: vectorised, no state, so that a replay from any row is exact.

Row i of split s of n is order number `i * n + s`; all fields are hashes of that number. Called by the generator
source; the Kafka demo's producer writes the same orders.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

ORDER_SCHEMA = pa.schema(
    [
        pa.field("user_id", pa.int64(), nullable=False),
        pa.field("amount", pa.int64(), nullable=False),
        pa.field("ts", pa.timestamp("us", tz="UTC"), nullable=False),
    ]
)

Int64s = np.ndarray[Any, np.dtype[np.int64]]
Uint64s = np.ndarray[Any, np.dtype[np.uint64]]


class OrderPattern(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the orders."""

    splits: int = 4
    #: Distinct values of `user_id`: 0 .. users-1.
    users: int = 1000
    #: Amounts are 1 .. max_amount.
    max_amount: int = 100
    #: Event time of order 0, microseconds since the epoch.
    start_us: int = 1_700_000_000_000_000
    #: Orders per second of event time, over all splits.
    event_rate: int = 10_000
    #: An order's event time is up to this much before its regular place.
    disorder_ms: int = 0
    seed: int = 0


def orders(pattern: OrderPattern, split: int, start: int, count: int) -> pa.RecordBatch:
    """Return rows start .. start+count-1 of one split."""
    number = np.arange(start, start + count, dtype=np.int64) * pattern.splits + split
    user_id = (_hash(number, pattern.seed, 1) % np.uint64(pattern.users)).astype(np.int64)
    amount = (_hash(number, pattern.seed, 2) % np.uint64(pattern.max_amount)).astype(np.int64) + 1
    arrays = [
        pa.array(user_id),
        pa.array(amount),
        pa.array(_times(pattern, number)).view(ORDER_SCHEMA.field("ts").type),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ORDER_SCHEMA)


def _times(pattern: OrderPattern, number: Int64s) -> Int64s:
    regular = pattern.start_us + number * 1_000_000 // pattern.event_rate
    if not pattern.disorder_ms:
        return regular
    early = _hash(number, pattern.seed, 3) % np.uint64(pattern.disorder_ms * 1000 + 1)
    return regular - early.astype(np.int64)


def _hash(number: Int64s, seed: int, field: int) -> Uint64s:
    """Return the finaliser of splitmix64 over (seed, field, row number): independent, evenly spread columns."""
    salt = (seed * 0x9E3779B97F4A7C15 + field * 0xD1B54A32D192ED03) & 0xFFFFFFFFFFFFFFFF
    mixed = number.astype(np.uint64) + np.uint64(salt)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
