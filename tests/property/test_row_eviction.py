"""State of twenty times its memory, on disk, stays within it."""

import numpy as np
import pyarrow as pa
from tests.unit.state.test_row_eviction import World, add, values

from penstock.core.keygroup import hash_range_of
from penstock.kernels.keys.hashing import hash_columns
from penstock.kernels.keys.key_columns import key_columns


def test_state_of_twenty_times_its_memory_stays_within_it(tmp_path):
    """Every key is written twice, half of them cleared; all is restored in two parts, each too large as well."""
    world, keys, size = World(tmp_path, 1 << 19), 100_000, 4000
    store, rows, table = world.open()
    order = np.random.default_rng(1).permutation(keys)
    for turn in (1, 2):
        for first in range(0, keys, size):
            add(rows, table, pa.array(order[first : first + size]), turn)
            assert world.budget.used_bytes <= world.limit
    for first in range(0, keys // 2, size):
        batch = pa.record_batch({"k": pa.array(np.arange(first, first + size))})
        table.clear(rows.upsert(key_columns(batch, ("k",)), hash_columns(batch, ("k",))).copy())
        rows.settle()
    snapshots = world.save(store)
    held = sum(len(data) for data in world.files.values())
    store.close()
    assert held > 1.5 * world.limit  # once, packed and compressed; in memory a key takes more than 100 bytes
    for part in range(2):
        store, rows, table = world.open(snapshots, owned := hash_range_of(part, 2, 64))
        assert world.budget.peak_bytes <= world.limit
        for first in range(0, keys, size):
            batch = pa.record_batch({"k": pa.array(np.arange(first, first + size))})
            hashes = hash_columns(batch, ("k",))
            slots = rows.upsert(key_columns(batch, ("k",)), hashes).copy()
            mine = (hashes >= owned.low) & (hashes <= owned.high)
            expected = [3 if here and first >= keys // 2 else None for here in mine.tolist()]
            assert values(table, slots) == expected
            rows.settle()
        store.close()
