"""Selection of the rows of a list or map that count: the last row of every entry since its key was cleared.

A row whose first entry column is null clears all earlier entries of its key and namespace. Called by the log of a table
in memory, by compaction and by the savepoint writer; any thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.kernels.keys.hashing import hash_key_columns
from penstock.kernels.keys.key_columns import key_column
from penstock.state.keys.key_index import KeyIndex

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.kernels.compiler.compile import I32, I64

_OWNER = "__owner"


def last_entries(owners: I32, entries: Sequence[pa.Array]) -> I64:
    """Return the positions of the rows that count, ascending, with deletions and the last clearing of an owner.

    Args:
        owners: of each row a small number that stands for its key and namespace; rows come in order.
        entries: the entry columns, all null in a row that clears.
    """
    rows = len(owners)
    if rows == 0:
        return np.empty(0, np.int64)
    names = [f"e{i}" for i in range(len(entries))]
    columns = (
        key_column(pa.array(owners, pa.int64()), _OWNER),
        *(key_column(array, name) for array, name in zip(entries, names, strict=True)),
    )
    fields = [(_OWNER, pa.int64()), *((name, array.type) for name, array in zip(names, entries, strict=True))]
    index = KeyIndex(pa.schema(fields))
    ids = index.upsert(columns, hash_key_columns(columns, rows))
    last = np.empty(index.count, np.int64)
    last[ids] = np.arange(rows)  # for equal ids the last assignment wins
    last.sort()
    if entries[0].null_count:
        clearing = np.flatnonzero(entries[0].is_null().to_numpy(zero_copy_only=False))
        cleared = np.full(int(owners.max()) + 1, -1, np.int64)
        cleared[owners[clearing]] = clearing
        last = last[last >= cleared[owners[last]]]
    return last
