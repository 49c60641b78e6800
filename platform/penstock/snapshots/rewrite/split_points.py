"""Splits the rows of a state into hash ranges, each with about as many bytes; and the size limits of the tools.

Used where a snapshot is rewritten (`repartition`, `rekey`), where Spark reads one (`spark_entry`) and where many
tasks write one (`parts`). Tests use small limits, so that a few rows fill many files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from penstock.core.keygroup import HashRange
from penstock.state.log.segment_file import SegmentFile
from penstock.state.memory.limits import PRODUCTION

if TYPE_CHECKING:
    from penstock.core.snapshot import FileRef, KeyedStateSnapshot, Segment
    from penstock.kernels.compiler.compile import I64


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotLimits:
    """Sizes in bytes; immutable."""

    #: Bytes of old files for one range, which only a single row group or key may exceed.
    range_bytes: int = 256 << 20
    #: Approximate bytes of rows in memory for one file of a change of keys.
    file_bytes: int = 256 << 20
    #: Bytes of rows that a task of a write sorts at a time.
    run_bytes: int = 128 << 20
    #: Bytes of rows in memory when a task of a write writes them.
    piece_bytes: int = 64 << 20
    #: Bytes of (compressed) files that are compared at a time.
    compared_bytes: int = 16 << 20
    #: A file of at least this size is rewritten alone, and by a preparation.
    large_file_bytes: int = 1 << 20
    #: Bytes of old files for one new file of a prepared rewrite, whose rows are in memory for a change of keys.
    run_file_bytes: int = 64 << 20


DEFAULT_LIMITS = SnapshotLimits()
#: With these a segment file is opened by its footer, however small it is.
_FOOTERS = PRODUCTION.changed(whole_file_bytes=0)


#: Most hashes for which the bytes below are computed; between two of them bytes are assumed to be spread evenly.
_EDGES = 8192
#: Most pairs of hash and load that are computed at a time: their arrays fit the cache.
_AT_ONCE = 1 << 16


def shared_ranges(ranges: Iterable[HashRange]) -> list[HashRange]:
    """Return the hashes that are in more than one of `ranges`, as ordered ranges that do not touch."""
    found: list[HashRange] = []
    reach: int | None = None
    for own in sorted(ranges):
        if reach is not None and own.low <= reach:
            high = min(own.high, reach)
            if found and own.low <= found[-1].high + 1:
                found[-1] = HashRange(found[-1].low, max(found[-1].high, high))
            else:
                found.append(HashRange(own.low, high))
        reach = own.high if reach is None else max(reach, own.high)
    return found


def intersected(left: Iterable[HashRange], right: Sequence[HashRange]) -> tuple[HashRange, ...]:
    """Return the hashes that both have, as ordered ranges; neither side overlaps itself."""
    return tuple(sorted(common for a in left for b in right if (common := a.intersect(b)) is not None))


@dataclass(frozen=True, slots=True)
class Loads:
    """Bytes by hash range; ranges may overlap, and bytes are assumed to be spread evenly within a range."""

    lows: np.ndarray
    highs: np.ndarray
    sizes: np.ndarray

    @classmethod
    def of(cls, found: Iterable[tuple[int, int, int]]) -> Loads:
        """Return loads of (lowest hash, highest hash, bytes)."""
        table = np.array(list(found), np.int64).reshape(-1, 3)
        return cls(table[:, 0], table[:, 1], table[:, 2])

    def within(self, hashes: HashRange) -> float:
        """Return the approximate bytes in a hash range."""
        return float(self.parts(hashes)[2].sum())

    def parts(self, hashes: HashRange) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the loads that overlap a hash range: start relative to its first hash, width, bytes."""
        near = (self.highs >= hashes.low) & (self.lows <= hashes.high)
        lows, highs = self.lows[near], self.highs[near]
        first, last = np.maximum(lows, hashes.low), np.minimum(highs, hashes.high)
        width = _distance(first, last) + 1
        start = _distance(np.full(len(first), hashes.low, np.int64), first)
        return start, width, self.sizes[near] * (width / (_distance(lows, highs) + 1))


def loads_of(held: Sequence[KeyedStateSnapshot]) -> Loads:
    """Return the loads of a state's files from the manifest."""
    return Loads.of(
        load
        for state in held
        for s in state.segments
        for load in _clipped(s, [(s.hash_min, s.hash_max, s.file.length)])
    )


def measured_loads(held: Sequence[KeyedStateSnapshot], read: Callable[[FileRef], bytes]) -> Loads:
    """Return the loads of a state's row groups; for several files the footer of each is read.

    Raises:
        SnapshotDamagedError: a file is missing or damaged.
    """
    found: list[tuple[int, int, int]] = []
    for state in held:
        for segment in state.segments:
            loads = [(segment.hash_min, segment.hash_max, segment.file.length)]
            if segment.footer_length and segment.rows > PRODUCTION.group_rows:
                loads = [(g.low, g.high, g.length) for g in SegmentFile(segment, read, _FOOTERS).groups]
            found += _clipped(segment, loads)
    return Loads.of(found)


def _clipped(segment: Segment, loads: Iterable[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
    """Yield the part of the loads that is inside the clip of the segment."""
    clip = HashRange(segment.clip_low, segment.clip_high)
    for low, high, size in loads:
        common = clip.intersect(HashRange(low, high)) if low <= high else None
        if common is not None:
            yield common.low, common.high, size * (common.high - common.low + 1) // (high - low + 1)


def ranges_by_size(loads: Loads, within: HashRange, size: int) -> list[HashRange]:
    """Split `within` into ranges of equal bytes, at most `size` each; a single hash is never split."""
    start, width, sizes = loads.parts(within)
    total, hashes = float(sizes.sum()), within.high - within.low + 1
    count = max(1, min(int(-(-total // max(1, size))), hashes))
    if count == 1:
        return [within]
    edges = np.unique(np.concatenate([[0.0, float(hashes)], start, start + width]))
    if len(edges) > _EDGES:
        edges = edges[np.linspace(0, len(edges) - 1, _EDGES).astype(np.int64)]
    below = np.empty(len(edges))
    step = max(1, _AT_ONCE // max(1, len(start)))
    for first in range(0, len(edges), step):
        some = edges[first : first + step, None]
        below[first : first + step] = (np.clip((some - start) / width, 0, 1) * sizes).sum(axis=1)
    wanted = np.rint(np.interp(total * np.arange(1, count) / count, below, edges))
    inner = {within.low + int(offset) for offset in wanted if 0 < offset < hashes}
    return [HashRange(low, high - 1) for low, high in pairwise(sorted({within.low, *inner, within.high + 1}))]


def ranges_of_hashes(loads: Loads, within: HashRange, hashes: I64, size: int) -> list[HashRange]:
    """Return ranges that hold the sorted `hashes` of `within`, each with at most about `size` bytes to read for them.

    A hash costs a small file or a row group in each load around it.
    """
    mine = hashes[(hashes >= within.low) & (hashes <= within.high)]
    if not len(mine):
        return []
    span = HashRange(int(mine[0]), int(mine[-1]))
    files = len(loads.parts(span)[2])
    cost = min(loads.within(span), float(len(mine) * files * PRODUCTION.whole_file_bytes))
    count = max(1, min(int(-(-cost // max(1, size))), len(mine)))
    return [HashRange(int(part[0]), int(part[-1])) for part in np.array_split(mine, count)]


def _distance(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return `high - low`, which may not fit into 64 bits with a sign."""
    found: np.ndarray = (high.astype(np.uint64) - low.astype(np.uint64)).astype(np.float64)
    return found
