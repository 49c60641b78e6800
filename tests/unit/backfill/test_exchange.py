"""Rows between stages keep their values, whatever their type, and come out in the canonical order."""

import datetime as dt
import decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.depth import examples

from penstock.backfill.exchange import COMBINED, NO_EDGE, Merger, Outbox, Packet, runs
from penstock.core.elements import MIN_TIMESTAMP

SCHEMA = pa.schema(
    [
        pa.field("i", pa.int64()),
        pa.field("u", pa.uint64()),
        pa.field("s", pa.large_string()),
        pa.field("at", pa.timestamp("ns", tz="UTC")),
        pa.field("naive", pa.timestamp("ms")),
        pa.field("d", pa.decimal128(20, 3)),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("b", pa.bool_()),
        pa.field("__ts", pa.int64(), nullable=False),
    ]
)
ROWS = pa.record_batch(
    [
        pa.array([1, None, 3]),
        pa.array([2**64 - 1, 0, None], pa.uint64()),
        pa.array(["a", None, ""], pa.large_string()),
        pa.array([1, None, -5], pa.timestamp("ns", tz="UTC")),
        pa.array([dt.datetime(2020, 1, 1), None, None], pa.timestamp("ms")),
        pa.array([decimal.Decimal("1.500"), None, None], pa.decimal128(20, 3)),
        pa.array([["x"], [], None], pa.list_(pa.string())),
        pa.array([True, None, False]),
        pa.array([10, 20, 30]),
    ],
    schema=SCHEMA,
)
#: Edge, part, times.
BATCHES = st.tuples(st.integers(0, 2), st.integers(0, 1), st.lists(st.integers(0, 20), max_size=30))
PLAIN = pa.schema([pa.field("id", pa.int64()), pa.field("__ts", pa.int64(), nullable=False)])
UNTIMED = pa.schema([pa.field("id", pa.int64())])


def merged(packets, schemas, part=0, batch_rows=1 << 15):
    """Return (edge, rows) of a part in their order."""
    merger = Merger(schemas, batch_rows)
    own = sorted((p for p in packets if p.part == part and p.edge != NO_EDGE), key=lambda packet: packet.place)
    batches = [rows for packet in own for rows in merger.add(packet)]
    batches += merger.rest()
    assert all(0 < len(rows) <= batch_rows for rows in batches)
    return [run for rows in batches for run in rows.runs()]


def test_rows_travel_and_come_back_as_they_were():
    box = Outbox(origin=7)
    box.add(0, ROWS.slice(1), np.array([3, 2]))
    box.add(0, ROWS.slice(0, 1), np.array([0]))
    box.finish(b"done")
    *packets, result = box.take()
    assert box.take() == []
    assert [(p.part, p.first, p.origin, p.number) for p in packets] == [(0, 10, 7, 0), (2, 30, 7, 1), (3, 20, 7, 2)]
    for part, row in ((0, 0), (2, 2), (3, 1)):
        assert merged(packets, {0: SCHEMA}, part) == [(0, ROWS.slice(row, 1))]
    assert (result.edge, result.data) == (NO_EDGE, b"done")


def test_combined_rows_are_rows_of_an_edge_of_their_own():
    box = Outbox(origin=1)
    box.add(2, ROWS, np.zeros(3), combined=True)
    box.finish(b"")
    assert [packet.edge for packet in box.take()] == [COMBINED + 2, NO_EDGE]


def rows_of(ids, times, schema=PLAIN):
    columns = [pa.array(ids, pa.int64()), pa.array(times, pa.int64())]
    return pa.RecordBatch.from_arrays(columns[: len(schema)], schema=schema)


@examples(150)
@given(
    senders=st.lists(
        st.lists(
            st.tuples(st.integers(0, 2), st.integers(0, 1), st.lists(st.integers(0, 20), max_size=30)), max_size=6
        ),
        min_size=1,
        max_size=4,
    ),
    batch_rows=st.sampled_from((1, 7, 1 << 15)),
)
def test_rows_of_a_part_come_in_the_order_of_time_then_edge_sender_and_position(senders, batch_rows):
    packets, wanted = [], {0: [], 1: []}
    count = 0
    for origin, batches in enumerate(senders):
        box = Outbox(origin)
        for position, (edge, part, times) in enumerate(batches):
            if not times:
                continue
            ids = range(count, count + len(times))
            count += len(times)
            schema = UNTIMED if edge == 2 else PLAIN
            box.add(edge, rows_of(ids, times, schema), np.full(len(times), part))
            known = [MIN_TIMESTAMP] * len(times) if edge == 2 else times
            wanted[part] += [(t, edge, origin, position, i) for t, i in zip(known, ids, strict=True)]
        box.finish(b"")
        packets += box.take()
    for part, rows in wanted.items():
        found = merged(packets, {0: PLAIN, 1: PLAIN, 2: UNTIMED}, part, batch_rows)
        order = [(edge, i) for edge, batch in found for i in batch.column("id").to_pylist()]
        assert order == [(edge, i) for _, edge, _, _, i in sorted(rows)]


def test_rows_that_no_later_packet_can_precede_come_at_once():
    merger = Merger({0: PLAIN}, 2)

    def add(number, *times):
        return [
            rows.times.tolist()
            for rows in merger.add(Packet(0, times[0], 0, 0, number, rows_of(times, times).serialize().to_pybytes()))
        ]

    assert add(0, 1, 2, 3) == []
    assert add(1, 3, 9) == [[1, 2], [3]], "a row of the same time in an earlier packet precedes it"
    assert add(2, 5, 6) == [[3]]
    assert [rows.times.tolist() for rows in merger.rest()] == [[5, 6], [9]]


def test_wide_rows_are_merged_in_smaller_batches():
    packets = [Packet(0, t, 0, 0, t, rows_of([t], [t]).serialize().to_pybytes()) for t in range(4)]
    merger = Merger({0: PLAIN}, 1 << 15, batch_bytes=1)
    found = [[rows.times.tolist() for rows in merger.add(packet)] for packet in packets]
    assert found == [[], [[0]], [[1]], [[2]]]
    assert [rows.times.tolist() for rows in merger.rest()] == [[3]]


def test_a_packet_has_a_limited_number_of_rows_and_of_bytes():
    box = Outbox(0)
    box.add(0, rows_of(range(20_000), range(20_000)), np.zeros(20_000))
    wide = pa.record_batch([pa.array(["x" * 100_000] * 100), pa.array(range(100))], ["text", "__ts"])
    box.add(1, wide, np.zeros(100))
    box.finish(b"")
    *packets, _ = box.take()
    assert [packet.edge for packet in packets[:3]] == [0, 0, 0]
    assert [packet.first for packet in packets[:3]] == [0, 8192, 16384]
    assert all(len(packet.data) <= (4 << 20) + 10_000 for packet in packets)
    assert len(packets) > 4


@pytest.mark.parametrize(
    ("values", "expected"), [([1, 1, 0, 2, 2], [(1, 0, 2), (0, 2, 3), (2, 3, 5)]), ([], [])], ids=["some", "none"]
)
def test_runs(values, expected):
    assert list(runs(np.array(values, np.int64))) == expected
