"""Runs of `TimedRows` that go to files, and files that become fewer and larger ones.

What goes to files at a time is a group: cut by time, so that each file goes as a whole when the watermark has passed
it. Groups of about the same size are merged, some rows at a time, without those the watermark has passed: so a row is
written a few times in its life, and there are a few groups however many rows there are. Called by
`state.tables.join_buffer` in the owner's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.state.keys.key_index import KeyIndex
from penstock.state.keys.run_keys import RunKeys, columns_of
from penstock.state.spill.join_run import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.kernels.compiler.compile import I32, I64
    from penstock.kernels.keys.key_columns import KeyColumns
    from penstock.state.keys.run_keys import Keys
    from penstock.state.memory.limits import StateLimits
    from penstock.state.spill.join_spill import SpillArea


def in_files(run: Run, keys: Keys, area: SpillArea, cleaned: int, group: int) -> Iterator[Run]:
    """Yield the rows of a run in memory, but for those that were cleaned, in files of one group."""
    for low, high in spans(run.low, run.high, _files_of(run.size, area.limits)):
        inside = (run.times >= max(low, cleaned + 1)) & (run.times <= high)
        if inside.any():
            yield written(run.chosen(inside), keys, area, group)


def written(run: Run, keys: Keys, area: SpillArea, group: int) -> Run:
    """Return the rows of a run in memory as one in a file."""
    own, numbers = RunKeys.of(keys, run.slots)
    ordered = Run.of(numbers, run.times, run.values)
    file = area.write(own, ordered.slots, ordered.times, ordered.values)
    return Run(file.numbers, file.times, file.values, 0, run.low, run.high, file, group, run.stop)


def spans(low: int, high: int, parts: int) -> Iterator[tuple[int, int]]:
    """Yield the first and last time of so many parts of a span of time, fewer if it is shorter than that."""
    width = (high - low) // parts + 1
    for first in range(low, high + 1, width):
        yield first, min(first + width - 1, high)


def slots_of(keys: RunKeys, numbers: I32, upsert: Callable[[KeyColumns, I64], I32]) -> I32:
    """Return the slots of rows of a file in an index, where `upsert` finds or makes those of keys."""
    distinct, places = np.unique(numbers, return_inverse=True)
    found: I32 = upsert(columns_of(keys, distinct), keys.hashes[distinct])[places]
    return found


def to_merge(runs: list[Run], fan: int) -> list[Run]:
    """Return the runs of groups that are to be one: neighbours, none of them much larger than the newer ones together.

    Nothing when there are fewer than `fan`.
    """
    groups: list[list[Run]] = []
    for run in runs:
        if run.spilled is None:
            continue
        if groups and groups[-1][0].group == run.group:
            groups[-1].append(run)
        else:
            groups.append([run])
    sizes = [sum(run.length for run in group) for group in groups]
    for last in range(len(groups), fan - 1, -1):
        first, together = last - 1, sizes[last - 1]
        while first > 0 and sizes[first - 1] <= 2 * together:
            first -= 1
            together += sizes[first]
        if last - first >= fan:
            return [run for group in groups[first:last] for run in group]
    return []


def merged(
    runs: list[Run], area: SpillArea, cleaned: Callable[[], int], files: int, group: int
) -> Iterator[Run | None]:
    """Yield the rows of runs in files as one group, in so many files; None where one would have no row.

    Of rows of one key and time those of earlier runs come first.
    """
    low, high = max(min(run.low for run in runs), cleaned() + 1), max(run.high for run in runs)
    for first, last in spans(low, high, files):
        index, parts = KeyIndex(runs[0].file.keys.schema), []
        for run in runs:
            if run.low > last or run.high < first:
                continue
            rows = np.flatnonzero((run.times >= max(first, cleaned() + 1)) & (run.times <= last))
            if len(rows):
                slots, chosen = slots_of(run.file.keys, run.slots[rows], index.upsert), pa.array(rows)
                parts.append((slots, run.times[rows], [value.take(chosen) for value in run.values]))
        for run in runs:
            run.file.release()
        if not parts:
            yield None
            continue
        made = joined(parts)
        made.stop = max(run.stop for run in runs)
        yield written(made, index.view(), area, group)


def halved(runs: list[Run], area: SpillArea, cleaned: int) -> list[Run]:
    """Return runs in files with the newest ones merged until each is larger than twice the next, or large."""
    runs, most = list(runs), area.limits.halved_bytes  # a merge takes several times as much memory
    while len(runs) > 1 and runs[-2].length <= min(2 * runs[-1].length, most - runs[-1].length):
        last = [runs.pop(), runs.pop()]
        runs += [run for run in merged(last[::-1], area, lambda: cleaned, 1, 0) if run is not None]
    return runs


def parts_of_time(runs: list[Run], piece: int, limits: StateLimits) -> int:
    """Return into how many files of about `piece` bytes runs are to be merged: enough that some go early."""
    size = sum(run.length for run in runs)
    return max(size // piece, _files_of(size, limits))


def _files_of(size: int, limits: StateLimits) -> int:
    """Return into how many files, by time, so many bytes go: none is small, and they are few."""
    return max(1, min(limits.cuts, size // max(1, limits.spilled_bytes)))


def joined(parts: list[tuple[I32, I64, list[pa.Array]]]) -> Run:
    """Return (slots, times, values) of one index as one run; of equal ones the later parts' come behind."""
    slots, times, values = zip(*parts, strict=True)
    columns = [pa.concat_arrays(list(column)) for column in zip(*values, strict=True)]
    return Run.of(np.concatenate(slots), np.concatenate(times), columns)
