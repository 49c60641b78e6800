"""Files of runs of `TimedRows`: writing runs to files, and merging files into fewer and larger ones.

Runs that are written together are a group, split by time, so that a file is dropped when the watermark has passed it.
Groups of about the same size are merged, some rows at a time, without rows that the watermark has passed. So each row
is written a few times, and there are a few groups for any number of rows. Called by `state.tables.join_buffer` in the
owner's thread.
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
    """Write the rows of a run in memory, except cleaned ones, to files of one group, and yield the new runs."""
    for low, high in spans(run.low, run.high, _files_of(run.size, area.limits)):
        inside = (run.times >= max(low, cleaned + 1)) & (run.times <= high)
        if inside.any():
            yield written(run.chosen(inside), keys, area, group)


def written(run: Run, keys: Keys, area: SpillArea, group: int) -> Run:
    """Write the rows of a run in memory to a file and return the run of it."""
    own, numbers = RunKeys.of(keys, run.slots)
    ordered = Run.of(numbers, run.times, run.values)
    file = area.write(own, ordered.slots, ordered.times, ordered.values)
    return Run(file.numbers, file.times, file.values, 0, run.low, run.high, file, group, run.stop)


def spans(low: int, high: int, parts: int) -> Iterator[tuple[int, int]]:
    """Yield the first and last time of `parts` parts of a span of time; fewer if it is too short."""
    width = (high - low) // parts + 1
    for first in range(low, high + 1, width):
        yield first, min(first + width - 1, high)


def slots_of(keys: RunKeys, numbers: I32, upsert: Callable[[KeyColumns, I64], I32]) -> I32:
    """Return the slots of a file's rows in an index; `upsert` finds or creates those of keys."""
    distinct, places = np.unique(numbers, return_inverse=True)
    found: I32 = upsert(columns_of(keys, distinct), keys.hashes[distinct])[places]
    return found


def to_merge(runs: list[Run], fan: int) -> list[Run]:
    """Return the runs of neighbouring groups to merge, none much larger than the newer ones together.

    Empty when there are fewer than `fan` groups.
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
    """Merge runs in files into one group of `files` files, and yield the new runs; None for an empty file.

    For one key and time, rows of earlier runs come first.
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
    """Return runs in files, with the newest merged until each is over twice as large as the next, or large."""
    runs, most = list(runs), area.limits.halved_bytes  # merging needs several times their size
    while len(runs) > 1 and runs[-2].length <= min(2 * runs[-1].length, most - runs[-1].length):
        last = [runs.pop(), runs.pop()]
        runs += [run for run in merged(last[::-1], area, lambda: cleaned, 1, 0) if run is not None]
    return runs


def parts_of_time(runs: list[Run], piece: int, limits: StateLimits) -> int:
    """Return the number of files of about `piece` bytes for a merge: enough that some are dropped early."""
    size = sum(run.length for run in runs)
    return max(size // piece, _files_of(size, limits))


def _files_of(size: int, limits: StateLimits) -> int:
    """Return the number of files, by time, for `size` bytes: few, and none of them small."""
    return max(1, min(limits.cuts, size // max(1, limits.spilled_bytes)))


def joined(parts: list[tuple[I32, I64, list[pa.Array]]]) -> Run:
    """Return (slots, times, values) of one index as one run; equal ones keep the order of the parts."""
    slots, times, values = zip(*parts, strict=True)
    columns = [pa.concat_arrays(list(column)) for column in zip(*values, strict=True)]
    return Run.of(np.concatenate(slots), np.concatenate(times), columns)
