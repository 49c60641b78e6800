"""Puts the packets of one part in order for its task, in memory or, beyond a bound, by way of a file.

Called by the tasks of `spark`, which receive their packets from the shuffle in any order.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator

from penstock.backfill.exchange import MERGED_BYTES, Packet


def in_order(packets: Iterable[Packet], most_bytes: int = MERGED_BYTES, folder: str | None = None) -> Iterator[Packet]:
    """Yield packets in the order of `Packet.place`; data of more than `most_bytes` is in a file below `folder`.

    The file has no name; it is removed at the end. The places of all packets are in memory.
    """
    with tempfile.SpooledTemporaryFile(most_bytes, dir=folder) as file:
        found = []
        end = 0
        for packet in packets:
            file.write(packet.data)
            found.append((packet.place, end, len(packet.data)))
            end += len(packet.data)
        for place, start, size in sorted(found):
            file.seek(start)
            yield Packet(*place, file.read(size))
