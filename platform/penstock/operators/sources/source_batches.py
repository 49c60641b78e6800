"""Small batches of a reader are concatenated: after the source each batch has a fixed cost.

A reader that is fastest with small reads (Kafka's keeps its messages in the CPU cache) is polled several times, and its
batches are emitted as one. Called by `operators.sources.source_operator` for every poll.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.connector.source import PollResult, SourceBatch
from penstock.core.views import bytes_without_pools, is_view

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.connector.source import SourceReader

#: Batches up to this total size are concatenated: the copy is cheap.
CONCATENATE_BYTES = 1 << 20
#: A reader that returned this many rows is polled again at once.
POLL_AGAIN_ROWS = 4096
#: A function that returns a batch's size in bytes.
Size = Callable[[pa.RecordBatch], int]
_WHOLE: Size = attrgetter("nbytes")


def size_function(schema: pa.Schema) -> Size:
    """Return a function that measures batches of `schema`; it excludes the pools of view columns."""
    return bytes_without_pools if any(map(is_view, schema.types)) else _WHOLE


def poll_batches(reader: SourceReader, rows: int, bytes_of: Size = _WHOLE) -> list[PollResult]:
    """Poll for about `rows` rows, repeatedly while the reader has more and the batches fit together."""
    results: list[PollResult] = []
    size = 0
    while True:
        result = reader.poll(rows)
        results.append(result)
        given = sum(batch.data.num_rows for batch in result.batches)
        rows -= given
        if given < POLL_AGAIN_ROWS or rows < given or result.drained:
            return results
        own = sum(bytes_of(batch.data) for batch in result.batches)
        size += own
        if size + own > CONCATENATE_BYTES:
            return results


def concatenate_batches(
    batches: Sequence[SourceBatch], bytes_of: Size = _WHOLE, most_bytes: int = CONCATENATE_BYTES
) -> Iterable[SourceBatch]:
    """Return the same rows in the same order, in fewer batches; one with dead letters stays separate."""
    if len(batches) <= 1:
        return batches
    groups: list[list[SourceBatch]] = []
    size = 0
    for batch in batches:
        own = bytes_of(batch.data) if batch.dead_letters is None else most_bytes + 1
        if groups and size + own <= most_bytes and batch.data.schema.equals(groups[-1][0].data.schema):
            groups[-1].append(batch)
            size += own
        else:
            groups.append([batch])
            size = own
    return [group[0] if len(group) == 1 else _merged(group) for group in groups]


def _merged(group: list[SourceBatch]) -> SourceBatch:
    places: dict[str, int] = {}
    for batch in group:
        for split_id in batch.split_ids:
            places.setdefault(split_id, len(places))
    data = pa.concat_batches([batch.data for batch in group])
    if len(places) == 1:
        return SourceBatch(data, tuple(places))
    index = [_index(batch, places) for batch in group]
    return SourceBatch(data, tuple(places), np.concatenate(index))


def _index(batch: SourceBatch, places: dict[str, int]) -> np.ndarray[Any, Any]:
    own = np.array([places[split_id] for split_id in batch.split_ids], np.int64)
    return np.full(batch.data.num_rows, own[0]) if batch.split_index is None else np.take(own, batch.split_index)
