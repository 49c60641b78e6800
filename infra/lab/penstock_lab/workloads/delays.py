"""Delays of results: the sink records arrivals, and the paced source records when rows were due.

Rows with `due` are counted by delay as they arrive. Results of windows are recorded by their end; when that end was due
follows later from the times at which every split's event time reached it (`completed_us`). Written by `sink` and
`paced`, each file by one subtask at its close; read by the latency benchmarks.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from penstock.core.structs import prepare
from penstock_lab.workloads.marks import DUE, WINDOW_END, Timed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.clock import Clock

#: Resolution and length of the histogram; delays beyond it count as the last bin.
BIN_US, BINS = 100, 100_000
_NEVER = (1 << 63) - 1

Int64s = np.ndarray[Any, np.dtype[np.int64]]


class Delays(msgspec.Struct, frozen=True, kw_only=True):
    """The records of one subtask of a sink."""

    rows: int
    #: Monotonic milliseconds of the first and last arrival.
    first_ms: float
    last_ms: float
    #: For rows: the largest delay, and the number in bin i; without rows due while the job settled.
    largest_us: int = 0
    counts: list[int] = []
    #: For windows: (end, arrival, results) in a row; times in microseconds, arrivals by the clock of the window's kind.
    arrivals: bytes = b""

    def windows(self) -> Int64s:
        """Return the arrivals, one per row."""
        return np.frombuffer(self.arrivals, np.int64).reshape(-1, 3)


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of one subtask of a paced source, and when they were due."""

    rows: int
    #: Monotonic milliseconds of the first and last row.
    first_ms: float
    last_ms: float
    #: The wall clock minus the monotonic one.
    wall_ms: float
    #: By split: maxima of event time (us), and when the row of each was due (us); both int64.
    progress: dict[str, tuple[bytes, bytes]] = {}


prepare(Delays, Schedule)


class DelayRecorder:
    """The records of one subtask of a sink."""

    def __init__(self, timed: Timed, settle_ms: float, clock: Clock) -> None:
        """Ignore rows due within `settle_ms` of the first one."""
        self._timed = timed
        self._settle_us = settle_ms * 1000
        self._clock = clock
        self._counts = np.zeros(BINS if timed == "rows" else 0, np.int64)
        self._arrivals: list[Int64s] = []
        self._rows = self._largest_us = 0
        self._from_us: float | None = None
        self._first_ms = self._last_ms = -1.0

    def add(self, batch: pa.RecordBatch) -> None:
        """Record a batch that has just arrived."""
        now = self._clock.monotonic_ms()
        if self._first_ms < 0:
            self._first_ms = now
        self._last_ms = now
        self._rows += batch.num_rows
        if self._timed == "rows":
            self._count(batch.column(DUE).to_numpy(), int(now * 1000))
            return
        ends = batch.column(WINDOW_END).view(pa.int64()).to_numpy()
        distinct, counts = np.unique(ends, return_counts=True)
        at = self._clock.now_ms() if self._timed == "clock" else now
        self._arrivals.append(np.stack([distinct, np.full(len(distinct), int(at * 1000)), counts], axis=1))

    def leave(self, folder: str, subtask: int) -> None:
        """Write the records to the folder."""
        found = Delays(
            rows=self._rows,
            first_ms=self._first_ms,
            last_ms=self._last_ms,
            largest_us=self._largest_us,
            counts=self._counts.tolist(),
            arrivals=np.concatenate(self._arrivals).tobytes() if self._arrivals else b"",
        )
        _leave(folder, f"delays-{subtask}", found)

    def _count(self, due: Int64s, now_us: int) -> None:
        if self._from_us is None and len(due):
            self._from_us = float(due.min()) + self._settle_us
        delays = now_us - due[due >= (self._from_us or 0.0)]
        if len(delays):
            self._largest_us = max(self._largest_us, int(delays.max()))
            self._counts += np.bincount(np.clip(delays // BIN_US, 0, BINS - 1), minlength=BINS)


def leave_schedule(folder: str, subtask: int, schedule: Schedule) -> None:
    """Write a source's schedule to the folder."""
    _leave(folder, f"schedule-{subtask}", schedule)


def read_delays(folder: str | os.PathLike[str]) -> tuple[Delays, ...]:
    """Return the records of the sink's subtasks."""
    return tuple(msgspec.msgpack.decode(path.read_bytes(), type=Delays) for path in _files(folder, "delays"))


def read_schedules(folder: str | os.PathLike[str]) -> tuple[Schedule, ...]:
    """Return the schedules of the source's subtasks."""
    return tuple(msgspec.msgpack.decode(path.read_bytes(), type=Schedule) for path in _files(folder, "schedule"))


def completed_us(ends: Int64s, schedules: Sequence[Schedule], bound_us: int) -> Int64s:
    """Return when the row that completes each window was due: of the last split to be `bound_us` past the end.

    A window that some split never passed, which only the end of the input completes, has the largest number.
    """
    due = np.full(len(ends), -(1 << 63), np.int64)
    for schedule in schedules:
        for times, dues in schedule.progress.values():
            heights, moments = np.frombuffer(times, np.int64), np.frombuffer(dues, np.int64)
            place = np.searchsorted(heights, ends + bound_us)
            found = np.append(moments, _NEVER)[place]
            due = np.maximum(due, found)
    return due


def never(due: Int64s) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return the windows that no row completed."""
    return np.asarray(due == _NEVER)


def _files(folder: str | os.PathLike[str], what: str) -> list[Path]:
    return sorted(Path(folder).glob(f"{what}-*"))


def _leave(folder: str, name: str, content: msgspec.Struct) -> None:
    Path(folder).mkdir(parents=True, exist_ok=True)
    (Path(folder) / name).write_bytes(msgspec.msgpack.encode(content))
