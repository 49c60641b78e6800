"""Rows that a barrier has overtaken: collected at both ends of a channel, encoded as Arrow IPC, read back.

An end of a channel adds what is queued there when the barrier passes it; the receiver also adds what arrives until the
barrier has. Rows are in the order of their channel. Watermarks and statuses are not kept: after a restore their sender
repeats them, after the restored rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa

from penstock.core.elements import Batch
from penstock.network.subpartition import CombinedRows


class QueuedRows(NamedTuple):
    """Rows of one message of an edge."""

    edge: str
    #: The subtask that would have received them; None: the subtask that collects.
    receiver: int | None
    item: Batch | pa.Buffer | CombinedRows
    #: Columns of an encoded item.
    schema: pa.Schema | None

    @property
    def combined(self) -> bool:
        """Return whether the rows are partial aggregates."""
        return isinstance(self.item, CombinedRows) or (isinstance(self.item, Batch) and self.item.combined)


class OvertakenRows:
    """The rows that a subtask collects for one overtaking checkpoint.

    The gate adds rows under its lock, from any thread; the subtask reads them once `complete`.
    """

    def __init__(self, checkpoint_id: int) -> None:
        """Collect for this checkpoint."""
        self.checkpoint_id = checkpoint_id
        #: Rows of the gate, and of the outputs.
        self.received: list[QueuedRows] = []
        self.sent: list[QueuedRows] = []
        #: Incoming channels whose barrier has not arrived, and outgoing ones whose barrier waits after rows.
        self.missing: set[int | tuple[str, int]] = set()
        #: Whether a barrier has overtaken rows, or could have.
        self.unaligned = False
        self.cancelled = False

    @property
    def complete(self) -> bool:
        """Return whether no further rows are added."""
        return self.cancelled or not self.missing

    def cancel(self) -> None:
        """Forget the rows: the checkpoint will never be complete."""
        self.cancelled = True
        self.release()

    def release(self) -> None:
        """Free the rows, as they are encoded."""
        self.received, self.sent = [], []

    def groups(self, own: int) -> list[tuple[RowsOf, list[QueuedRows]]]:
        """Return the rows by edge, receiver and kind, those of the gate first; `own` is the collecting subtask."""
        found: dict[RowsOf, list[QueuedRows]] = {}
        for at_sender, some in ((False, self.received), (True, self.sent)):
            for rows in some:
                receiver = own if rows.receiver is None else rows.receiver
                found.setdefault(RowsOf(rows.edge, receiver, rows.combined, at_sender), []).append(rows)
        return list(found.items())


class RowsOf(NamedTuple):
    """The common description of the rows of one file."""

    edge: str
    receiver: int
    combined: bool
    #: They were queued at their sender, after those that were queued at their receiver.
    at_sender: bool


def encode_rows(rows: Iterable[QueuedRows]) -> bytes:
    """Return rows of one kind as an Arrow IPC stream; encoded messages are not decoded for it."""
    sink = pa.BufferOutputStream()
    begun = False
    for queued in rows:
        item = queued.item
        if isinstance(item, Batch):
            schema, message = item.data.schema, item.data.serialize()
        else:
            assert queued.schema is not None  # noqa: S101 - an end of a channel that encodes knows the columns
            schema, message = queued.schema, item.message if isinstance(item, CombinedRows) else item
        if not begun:
            sink.write(schema.serialize())
            begun = True
        sink.write(message)
    return bytes(sink.getvalue())


def decode_rows(data: bytes, *, combined: bool) -> list[Batch]:
    """Invert `encode_rows`."""
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return [Batch(batch, combined=combined) for batch in reader]
