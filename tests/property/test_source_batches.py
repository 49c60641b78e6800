"""Batches put together against the rows one by one, and how long a reader is asked."""

import itertools

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from tests.property.pools import pooled
from tests.support.depth import examples

from penstock.connector.source import PollResult, SourceBatch
from penstock.connector.staging import dead_letters
from penstock.operators.sources.source_operator import (
    CONCATENATE_BYTES,
    POLL_AGAIN_ROWS,
    concatenate_batches,
    poll_batches,
    size_function,
)

NAMES = ("a", "b", "c")
LETTERS = dead_letters(value=[b"x"], topic=["t"], partition=[0], offset=[1], error=["why"])


@st.composite
def batches(draw):
    ids = tuple(draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True)))
    values = draw(st.lists(st.integers(0, 99), max_size=6))
    kind = draw(st.sampled_from([pa.int64(), pa.int64(), pa.int32()]))
    index = draw(st.lists(st.integers(0, len(ids) - 1), min_size=len(values), max_size=len(values)))
    return SourceBatch(
        pa.record_batch([pa.array(values, kind)], ["v"]),
        ids,
        np.array(index, np.int64) if len(ids) > 1 else None,
        draw(st.sampled_from([None, None, None, LETTERS])),
    )


def rows_of(parts):
    found = []
    for part in parts:
        values = part.data.column(0).to_pylist()
        index = [0] * len(values) if part.split_index is None else part.split_index.tolist()
        found += [(part.split_ids[i], v, part.data.schema) for i, v in zip(index, values, strict=True)]
    return found


@given(st.lists(batches(), max_size=6), st.sampled_from([CONCATENATE_BYTES, 60, 0]))
@examples(300)
def test_the_rows_stay_what_and_where_they_are(parts, limit):
    found = list(concatenate_batches(parts, most_bytes=limit))
    assert rows_of(found) == rows_of(parts)
    assert [p for p in found if p.dead_letters is not None] == [p for p in parts if p.dead_letters is not None]
    assert all(p.data.nbytes <= limit for p in found if not any(p is q for q in parts))
    if limit == CONCATENATE_BYTES:
        for first, second in itertools.pairwise(found):
            apart = first.dead_letters is not None or second.dead_letters is not None
            assert apart or first.data.schema != second.data.schema, "these two fit together"


class Reader:
    def __init__(self, *rows, drained_at=None):
        self.rows, self.asked, self.drained_at = list(rows), [], drained_at

    def poll(self, max_rows):
        self.asked.append(max_rows)
        count = min(self.rows.pop(0) if self.rows else 0, max_rows)
        parts = (SourceBatch(pa.record_batch([np.zeros(count, np.int64)], ["v"]), ("a",)),) if count else ()
        return PollResult(parts, drained=len(self.asked) == self.drained_at)


def given_rows(results):
    return [sum(batch.data.num_rows for batch in result.batches) for result in results]


def test_a_reader_with_more_is_asked_as_long_as_it_fits():
    reader = Reader(*[10_000] * 20)
    assert given_rows(poll_batches(reader, 45_000)) == [10_000] * 4
    assert reader.asked == [45_000, 35_000, 25_000, 15_000]
    many = CONCATENATE_BYTES // 8 // 10_000
    assert given_rows(poll_batches(Reader(*[10_000] * 50), 1_000_000)) == [10_000] * many


def test_batches_of_one_pool_go_together_and_keep_it():
    pool = b"pool" * 100_000
    texts = [[f"text number {i} of batch {b}" for i in range(5000)] for b in range(3)]
    parts = [
        SourceBatch(pa.record_batch([pooled(texts[b], pa.string_view(), pool)], names=["s"]), ("a",)) for b in range(3)
    ]
    assert parts[0].data.nbytes * 3 > CONCATENATE_BYTES
    bytes_of = size_function(parts[0].data.schema)
    (found,) = concatenate_batches(parts, bytes_of)
    found.data.validate(full=True)
    assert found.data.column(0).to_pylist() == [*texts[0], *texts[1], *texts[2]]
    reader = Reader()
    reader.poll = lambda rows: PollResult((parts[0],), drained=False)
    assert given_rows(poll_batches(reader, 20_000, bytes_of)) == [5000] * 4
    assert size_function(pa.schema([("s", pa.string())]))(parts[0].data) == parts[0].data.nbytes


def test_a_reader_with_little_or_nothing_more_is_asked_once():
    assert given_rows(poll_batches(Reader(POLL_AGAIN_ROWS - 1, 5), 65_536)) == [POLL_AGAIN_ROWS - 1]
    assert given_rows(poll_batches(Reader(0, 5), 65_536)) == [0]
    assert given_rows(poll_batches(Reader(65_536, 5), 65_536)) == [65_536]
    assert given_rows(poll_batches(Reader(10_000, 10_000, 10_000, drained_at=2), 65_536)) == [10_000, 10_000]
    assert given_rows(poll_batches(Reader(10_000, 7, 10_000), 65_536)) == [10_000, 7]
