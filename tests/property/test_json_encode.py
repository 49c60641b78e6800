"""The compiled JSON writer against Polars, byte for byte, and against Python's own reader."""

import datetime as dt
import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.depth import examples

from penstock_connectors.formats.json_encode import encode_by_polars, encode_json

TIMES = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999) | st.integers(-86_400_000, 86_400_000).map(
    lambda second: second * 1_000_000
)
WIDE_TIMES = TIMES | st.sampled_from([-62_135_596_800_000_001, 253_402_300_800_000_000])
TEXTS = st.text(max_size=12) | st.text('"\\/\n\t\r\b\f\0\x01\x1f\x7f\x80a', max_size=6)
# a zero byte is more than Polars takes in a name
NAMES = TEXTS.filter(lambda name: "\0" not in name)


def integers(bits, *, signed):
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    return st.integers(low, high) | st.sampled_from([low, high, 0]) | st.integers(0, 99).filter(lambda v: v <= high)


COLUMNS = {
    pa.int64(): integers(64, signed=True),
    pa.int32(): integers(32, signed=True),
    pa.int8(): integers(8, signed=True),
    pa.uint32(): integers(32, signed=False),
    pa.uint64(): integers(64, signed=False),
    pa.bool_(): st.booleans(),
    pa.string(): TEXTS,
    pa.large_string(): TEXTS,
    pa.float64(): st.floats(),
    pa.date32(): st.integers(-700_000, 2_000_000),
    pa.timestamp("us", tz="UTC"): WIDE_TIMES,
    pa.timestamp("us", tz="Europe/Berlin"): TIMES,
    pa.timestamp("us"): TIMES,
    pa.timestamp("ms", tz="UTC"): TIMES.map(lambda micros: micros // 1000),
    pa.timestamp("ns", tz="UTC"): integers(60, signed=True),
    pa.binary(): st.binary(max_size=5),
    pa.list_(pa.int64()): st.lists(st.integers(-5, 5), max_size=3),
    pa.struct([("a", pa.int64()), ("b", pa.string())]): st.fixed_dictionaries({"a": st.integers(0, 9), "b": TEXTS}),
}


@st.composite
def batches(draw, kinds):
    rows = draw(st.integers(0, 12))
    chosen = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=5))
    names = draw(st.lists(NAMES, min_size=len(chosen), max_size=len(chosen), unique=True))
    arrays = []
    for kind in chosen:
        values = draw(st.lists(st.none() | COLUMNS[kind], min_size=rows, max_size=rows))
        if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            whole = pa.int32() if pa.types.is_date(kind) else pa.int64()
            arrays.append(pa.array(values, whole).view(kind))
        else:
            arrays.append(pa.array(values, kind))
    batch = pa.RecordBatch.from_arrays(arrays, names=names)
    begin = draw(st.integers(0, rows))
    return batch.slice(begin, draw(st.integers(0, rows - begin)))


@given(batches(list(COLUMNS)))
@examples(400)
def test_every_row_is_what_polars_writes(batch):
    assert encode_json(batch).to_pylist() == encode_by_polars(batch).to_pylist()


@given(batches([pa.int64(), pa.int8(), pa.bool_(), pa.string(), pa.large_string()]))
@examples(200)
def test_a_reader_finds_the_values_again(batch):
    found = encode_json(batch)
    assert found.type == pa.large_string()
    assert [json.loads(text) for text in found.to_pylist()] == batch.to_pylist()


@pytest.mark.parametrize("micros", [0, 1, -1, 1_000, 999_999, 1_709_164_800_000_000, -2_203_891_200_000_000])
def test_times_around_the_edges_of_the_calendar(micros):
    moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=micros)
    batch = pa.record_batch([pa.array([micros, None, micros]).view(pa.timestamp("us", tz="UTC"))], ["t"])
    first, none, again = (json.loads(text)["t"] for text in encode_json(batch).to_pylist())
    assert dt.datetime.fromisoformat(first) == moment
    assert none is None
    assert again == first


def test_many_rows_with_the_same_time_between_others():
    times = [5, 5, 7, 5, 5_000_000, 5_000_000, 5]
    batch = pa.record_batch([pa.array(times).view(pa.timestamp("us", tz="UTC")), pa.array(range(7))], ["t", "n"])
    assert encode_json(batch).to_pylist() == encode_by_polars(batch).to_pylist()
