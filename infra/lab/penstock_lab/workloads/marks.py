"""Marks of a benchmark's source and sink in a folder: the time of the first row, and the published results.

Written by reader and committer (each file by one process, atomically), read by the benchmark.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from penstock.core.structs import prepare

#: Column with the time a row was due, in microseconds of the host's monotonic clock.
DUE = "due"
#: Column with the end of a result's window.
WINDOW_END = "window_end"
#: Kind of a sink's results: rows with `due`, windows of event time, windows of the clock; empty: no delays are
#: recorded.
Timed = Literal["", "rows", "windows", "clock"]

_FIRST, _RESULT, _SUMS = "first", "result", "sums"


@dataclass(frozen=True)
class Marks:
    """A folder's content; times are seconds since the epoch."""

    first_record: float
    last_result: float
    #: The four sums of everything published.
    sums: tuple[int, ...]
    #: Rows published by each writing subtask.
    rows: dict[int, int] = field(default_factory=dict)
    #: Time of the first result at the sink; 0 without any.
    first_result: float = 0.0

    @property
    def checksum(self) -> str:
        """Return the sums as the workloads write them: `rows:first:second:check`."""
        return ":".join(str(value) for value in self.sums)


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """The output of one committable."""

    subtask: int
    at_ms: int
    sums: tuple[int, int, int, int]


prepare(Published)


def first_record(folder: str, subtask: int, now_ms: int) -> None:
    """Record the time of a subtask's first row; a later attempt of it changes nothing."""
    _note(Path(folder) / f"{_FIRST}-{subtask}", now_ms)


def first_result(folder: str, subtask: int, now_ms: int) -> None:
    """Record the time of the first row at a sink's subtask; a later attempt of it changes nothing."""
    _note(Path(folder) / f"{_RESULT}-{subtask}", now_ms)


def published(folder: str, committable_id: str, content: Published) -> bool:
    """Publish one committable's sums under its own name; a repetition changes nothing.

    Returns whether it was new.
    """
    path = Path(folder) / f"{_SUMS}-{re.sub(r'[^A-Za-z0-9_.-]', '_', committable_id)}"
    try:
        _put(path, msgspec.json.encode(content))
    except FileExistsError:
        return False
    return True


def read_marks(folder: str | os.PathLike[str]) -> Marks:
    """Return the marks of the folder; without results the sums are zeros."""
    place = Path(folder)
    starts, results = (
        [int(path.read_text(encoding="ascii")) for path in place.glob(f"{what}-*")] for what in (_FIRST, _RESULT)
    )
    found = [msgspec.json.decode(path.read_bytes(), type=Published) for path in place.glob(f"{_SUMS}-*")]
    rows: dict[int, int] = {}
    for one in found:
        rows[one.subtask] = rows.get(one.subtask, 0) + one.sums[0]
    return Marks(
        first_record=min(starts, default=0) / 1000,
        last_result=max((one.at_ms for one in found), default=0) / 1000,
        sums=tuple(sum(one.sums[i] for one in found) for i in range(4)),
        rows=rows,
        first_result=min(results, default=0) / 1000,
    )


def _note(path: Path, now_ms: int) -> None:
    with contextlib.suppress(FileExistsError):
        _put(path, str(now_ms).encode())


def _put(path: Path, content: bytes) -> None:
    """Write a temporary file and link it to its name, so that no reader sees a part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_bytes(content)
    try:
        os.link(aside, path)
    finally:
        aside.unlink(missing_ok=True)
