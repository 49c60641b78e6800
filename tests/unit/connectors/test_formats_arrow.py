"""Arrow IPC stream messages: round trip, limits of a message, and bad payloads."""

import pyarrow as pa
import pytest

from penstock_connectors.formats.arrow_stream import MAX_MESSAGE_BYTES, MAX_MESSAGE_ROWS, decode_arrow, encode_arrow

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("s", pa.string())])


def batch(rows):
    return pa.RecordBatch.from_pydict(
        {"id": list(range(rows)), "s": [None if i % 3 else "x" * (i % 50) for i in range(rows)]}, schema=SCHEMA
    )


@pytest.mark.parametrize("rows", [1, MAX_MESSAGE_ROWS, MAX_MESSAGE_ROWS * 2 + 1])
def test_round_trip_and_row_limit(rows):
    encoded = encode_arrow(batch(rows))
    assert len(encoded) == -(-rows // MAX_MESSAGE_ROWS)
    got = decode_arrow(encoded, SCHEMA)
    assert got.rows.equals(batch(rows))
    assert got.payload_index.tolist() == [i // MAX_MESSAGE_ROWS for i in range(rows)]


def test_large_rows_are_split_by_bytes_even_when_uneven():
    rows = pa.RecordBatch.from_pydict(
        {"id": [1, 2, 3, 4], "s": ["a", "b", "c" * 700_000, "d" * 700_000]}, schema=SCHEMA
    )
    encoded = encode_arrow(rows)
    assert max(len(p.as_py()) for p in encoded) < MAX_MESSAGE_BYTES + 1024
    assert decode_arrow(encoded, SCHEMA).rows.equals(rows)


def test_bad_payloads_keep_their_place():
    good = encode_arrow(batch(2))[0].as_py()
    wrong = encode_arrow(pa.RecordBatch.from_pydict({"id": ["no"]}))[0].as_py()
    null = encode_arrow(
        pa.RecordBatch.from_pydict(
            {"id": [None], "s": ["x"]}, schema=pa.schema([("id", pa.int64()), ("s", pa.string())])
        )
    )
    payloads = pa.array([good, b"junk", None, b"", wrong, null[0].as_py(), good[:50], good], type=pa.large_binary())
    got = decode_arrow(payloads, SCHEMA)
    assert [b.index for b in got.bad] == [1, 2, 3, 4, 5, 6]
    assert got.payload_index.tolist() == [0, 0, 7, 7]


def test_fields_in_another_order_are_matched_by_name():
    other = pa.RecordBatch.from_pydict({"more": [1], "s": ["x"], "id": pa.array([5], pa.int32())})
    assert decode_arrow(encode_arrow(other), SCHEMA).rows.to_pylist() == [{"id": 5, "s": "x"}]


def test_nothing():
    assert decode_arrow(pa.array([], pa.large_binary()), SCHEMA).rows.num_rows == 0
    assert len(encode_arrow(batch(0))) == 0
