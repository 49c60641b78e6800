"""`WaitingRows`: rows of keys whose state is being fetched or loaded; rows of other keys pass them.

Rows of one key keep their order: a row waits while an earlier one of its key does. Everything else in the input
(watermarks, ends of input, savepoints) waits until no row does; only the barriers of checkpoints pass, and the waiting
rows become rows in flight of the checkpoint. During a restore, which ends soon, rows also pass watermarks and statuses.
Kept by `task.drive.subtask`, in its thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.core.elements import Batch, Watermark, WatermarkStatus
from penstock.kernels.keys.hashing import hash_columns
from penstock.kernels.rows.row_filter import filter_rows
from penstock.task.chain.hot_keys import keys_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.kernels.compiler.compile import I64, Mask
    from penstock.state.log.arrival import ArrivingState
    from penstock.task.chain.chain import ChainLink

#: Watermarks and statuses that wait at most.
_MOST_HELD = 4096


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Rows of one batch, with the hashes of their keys."""

    input_index: int
    rows: Batch
    hashes: I64

    def chosen(self, mask: Mask) -> _Waiting:
        data = filter_rows(self.rows.data, mask)
        return _Waiting(self.input_index, Batch(data, combined=self.rows.combined), self.hashes[mask])

    @property
    def nbytes(self) -> int:
        return int(self.rows.data.nbytes)


class WaitingRows:
    """The waiting rows of one subtask, in the order in which they came."""

    def __init__(self, state: ArrivingState, keys: Sequence[tuple[str, ...]], limit_bytes: int) -> None:
        """Let rows wait for `state`; `keys` are the key columns of each input. At `limit_bytes` it is full."""
        self._state, self._keys, self._limit_bytes = state, keys, limit_bytes
        self._waiting: list[_Waiting] = []
        #: Rows whose state was fetched, in their order.
        self._ready: list[_Waiting] = []
        self._bytes = 0
        #: `changes` of the state when the rows were last compared with it.
        self._compared = -1
        #: Watermarks and statuses that came after waiting rows, with their channels.
        self._held: list[tuple[int, Watermark | WatermarkStatus]] = []

    @classmethod
    def of(cls, head: ChainLink, limit_bytes: int) -> WaitingRows | None:
        """Return the waiting rows of a chain with this head; None if its rows never wait."""
        state = head.capabilities.arriving
        return None if state is None else cls(state, keys_of(head.spec.config), limit_bytes)

    def __bool__(self) -> bool:
        """Return whether there is a row."""
        return bool(self._waiting or self._ready)

    @property
    def count(self) -> int:
        """The number of rows."""
        return sum(rows.num_rows for _, rows in self.batches)

    @property
    def full(self) -> bool:
        """Whether so much waits that nothing further may be read."""
        return self._bytes >= self._limit_bytes or len(self._held) >= _MOST_HELD

    @property
    def batches(self) -> tuple[tuple[int, Batch], ...]:
        """The rows, each batch with its input; those of one key are in their order."""
        return tuple((one.input_index, one.rows) for one in (*self._ready, *self._waiting))

    def split(self, batch: Batch, input_index: int) -> Batch | None:
        """Keep the rows of a batch that have to wait; return the others, None if there are none."""
        if self._state.complete and not self:
            return batch
        keys = self._keys[min(input_index, len(self._keys) - 1)]
        given = _Waiting(input_index, batch, hash_columns(batch.data, keys))
        waits = self._state.unfetched(given.hashes)
        if not self._waiting:
            self._compared = self._state.changes
        if self._ready or self._compared != self._state.changes:
            waits |= np.isin(given.hashes, np.concatenate([one.hashes for one in (*self._ready, *self._waiting)]))
            self._compared = -1  # some of them may only wait for rows that are ready
        if not waits.any():
            return batch
        self._state.wait_for(given.hashes[waits])
        self._add(given.chosen(waits))
        return None if waits.all() else given.chosen(~waits).rows

    @property
    def delays(self) -> bool:
        """Whether everything but rows and barriers of checkpoints has to wait."""
        return bool(self) or self._state.only_rows

    @property
    def holds(self) -> bool:
        """Whether a watermark or status waits."""
        return bool(self._held)

    def hold(self, channel: int, element: Watermark | WatermarkStatus) -> None:
        """Let a watermark or status wait until no row does; a watermark replaces one of its channel just before it.

        Those of other channels are not passed: the result for a channel that becomes active depends on the order.
        Rows that pass a watermark are not late by it. A checkpoint does not contain it: a restart sends it again.
        """
        last = self._held[-1] if self._held else None
        if (
            last is not None
            and last[0] == channel
            and isinstance(last[1], Watermark)
            and isinstance(element, Watermark)
        ):
            self._held.pop()
        self._held.append((channel, element))

    def take_held(self) -> tuple[int, Watermark | WatermarkStatus] | None:
        """Remove and return the first held element; None: it has to wait, or there is none."""
        return self._held.pop(0) if self._held and not self.delays else None

    def take(self) -> tuple[int, Batch] | None:
        """Remove and return rows whose state was fetched, with their input; None if there are none."""
        if self._waiting and self._compared != self._state.changes:
            self._compare()
        if not self._ready:
            return None
        first = self._ready.pop(0)
        self._bytes -= first.nbytes
        return first.input_index, first.rows

    def release(self) -> None:
        """Let no row wait: no fetch is under way, so that the operator has to fetch the state itself."""
        self._ready += self._waiting
        self._waiting = []

    def _add(self, rows: _Waiting) -> None:
        self._waiting.append(rows)
        self._bytes += rows.nbytes

    def _compare(self) -> None:
        """Find the rows of keys none of which has to wait; neighbouring batches of an input become one."""
        self._compared = self._state.changes
        runs = groupby(self._waiting, lambda one: (one.input_index, one.rows.combined))
        self._waiting = [_joined(list(run)) for _, run in runs]
        masks = [self._state.unfetched(one.hashes) for one in self._waiting]
        unfetched = np.concatenate([one.hashes[mask] for one, mask in zip(self._waiting, masks, strict=True)])
        waiting = []
        for one in self._waiting:
            waits = np.isin(one.hashes, unfetched)
            if not waits.all():
                self._ready.append(one.chosen(~waits))
            if waits.any():
                waiting.append(one.chosen(waits))
        self._waiting = waiting
        self._bytes = sum(one.nbytes for one in (*self._ready, *self._waiting))


def _joined(run: list[_Waiting]) -> _Waiting:
    """Return batches of one input as one."""
    first = run[0]
    if len(run) == 1:
        return first
    data = pa.concat_batches([one.rows.data for one in run])
    hashes = np.concatenate([one.hashes for one in run])
    return _Waiting(first.input_index, Batch(data, combined=first.rows.combined), hashes)
