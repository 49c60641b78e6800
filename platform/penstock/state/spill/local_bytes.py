"""Local disk usage of records that can be fetched again from the object store.

Kept by `state.spill.cold_records`; `state.remote.remote_keys` drops regions when it is too large. In the owner's
thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.state.keys.hash_ranges import even_parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.keygroup import HashRange
    from penstock.kernels.compiler.compile import I64

#: Approximate overhead of a record on the local disk.
_RECORD_BYTES = 48


class LocalBytes:
    """The approximate bytes of the records of all states on the local disk, by hash region."""

    def __init__(self, owned: HashRange, regions: int) -> None:
        """Start at zero for `regions` regions of the hashes."""
        self.regions = even_parts(owned, regions)
        self._lows = np.array([part.low for part in self.regions], np.int64)
        self.sizes = np.zeros(len(self.regions), np.int64)

    def came(self, hashes: I64, records: Sequence[bytes]) -> None:
        """Add records that were stored."""
        self._add(hashes, records, 1)

    def went(self, hashes: I64, records: Sequence[bytes]) -> None:
        """Subtract records that were removed."""
        self._add(hashes, records, -1)

    def _add(self, hashes: I64, records: Sequence[bytes], sign: int) -> None:
        sizes = np.fromiter(map(len, records), np.int64, len(records)) + _RECORD_BYTES
        np.add.at(self.sizes, np.searchsorted(self._lows, hashes, side="right") - 1, sign * sizes)
        np.maximum(self.sizes, 0, out=self.sizes)
