"""JSON decoding and encoding: exact values, bad records, and the compiled pass against the exact decoder."""

import datetime as dt
import decimal
import json
import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.depth import examples

from penstock.core.errors import GraphError
from penstock_connectors.formats.decoded import RowError
from penstock_connectors.formats.json_decode import JsonDecoder
from penstock_connectors.formats.json_encode import encode_json
from penstock_connectors.formats.json_rows import JsonRowDecoder
from penstock_connectors.formats.timestamps import micros_of_number, micros_of_text

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("user", pa.string()),
        pa.field("amount", pa.float64()),
        pa.field("ok", pa.bool_()),
        pa.field("ts", pa.timestamp("us", tz="UTC")),
    ]
)


def binary(*payloads):
    return pa.array(payloads, type=pa.large_binary())


def decode(*payloads, schema=SCHEMA, **options):
    return JsonDecoder(schema, **options).decode(binary(*payloads))


def test_plain_rows_keep_every_value():
    got = decode(
        b'{"id":1,"user":"ann","amount":2.5,"ok":true,"ts":"2024-01-02T03:04:05.678901Z"}',
        b' { "ok" : false , "id" : -7 , "extra" : [1,{"a":"}"}] , "user" : null } ',
    )
    assert got.bad == ()
    assert got.payload_index is None
    assert got.rows.to_pylist() == [
        {
            "id": 1,
            "user": "ann",
            "amount": 2.5,
            "ok": True,
            "ts": dt.datetime(2024, 1, 2, 3, 4, 5, 678901, tzinfo=dt.UTC),
        },
        {"id": -7, "user": None, "amount": None, "ok": False, "ts": None},
    ]


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (None, "empty or null"),
        (b"", "empty or null"),
        (b"   ", "not JSON"),
        (b"{", "not JSON"),
        (b'{"id":1}{', "not JSON"),
        (b'{"id":1,}', "not JSON"),
        (b'{"id":01}', "not JSON"),
        (b"[1]", "object was expected, not an array"),
        (b"null", "object was expected, not null"),
        (b'{"user":"x"}', "'id' is missing"),
        (b'{"id":null}', "'id' is null"),
        (b'{"id":"1"}', "an integer was expected, not a string"),
        (b'{"id":1.0}', "an integer was expected"),
        (b'{"id":true}', "an integer was expected, not a boolean"),
        (b'{"id":9223372036854775808}', "does not fit int64"),
        (b'{"id":1,"user":5}', "a string was expected, not an integer"),
        (b'{"id":1,"amount":"5"}', "a number was expected, not a string"),
        (b'{"id":1,"amount":1e999}', "'amount'|not JSON"),
        (b'{"id":1,"ok":1}', "a boolean was expected"),
        (b'{"id":1,"ts":1.5}', "a time was expected"),
        (b'{"id":1,"ts":"yesterday"}', "not an accepted time"),
        (b'{"id":1,"ts":"2024-02-30T00:00:00Z"}', "not an accepted time"),
        (b'{"id":1,"user":"\xff"}', "not JSON|utf-8"),
        (b'{"id":1,"zzz":"\xff"}', "not JSON|utf-8"),
        (b'{"id":1,"user":"a\nb"}', "not JSON"),
        (b'{"id":1,"zzz":[1,,2]}', "not JSON"),
        (b'{"id":1,"zzz":{"a":1,"b"}}', "not JSON"),
    ],
)
def test_bad_record_is_named_and_its_neighbours_survive(payload, reason):
    got = decode(b'{"id":1}', payload, b'{"id":3}')
    assert got.rows.column("id").to_pylist() == [1, 3]
    assert got.payload_index.tolist() == [0, 2]
    (bad,) = got.bad
    assert bad.index == 1
    assert any(part in bad.reason for part in reason.split("|")), bad.reason


def test_line_breaks_between_tokens_are_no_rows_of_their_own():
    got = decode(b'{\n"id":1,\r\n\t"user":"x"\n}\n', b'{"id":2}')
    assert got.rows.column("id").to_pylist() == [1, 2]


def test_escapes_and_unicode():
    text = 'q"\\/\b\f\n\r\t\u00e9\u20ac\U0001f600 end'
    payloads = [
        json.dumps({"id": 1, "user": text}).encode(),
        json.dumps({"id": 2, "user": text}, ensure_ascii=False).encode(),
    ]
    assert decode(*payloads).rows.column("user").to_pylist() == [text, text]


def test_last_of_two_equal_fields_wins():
    assert decode(b'{"id":1,"id":2,"user":"a","user":null}').rows.to_pylist()[0]["id"] == 2
    assert decode(b'{"id":1,"user":"a","user":null}').rows.to_pylist()[0]["user"] is None


def test_sliced_input_with_nulls():
    payloads = binary(b"junk", b'{"id":1}', None, b'{"id":3}')[1:]
    got = JsonDecoder(SCHEMA).decode(payloads)
    assert got.rows.column("id").to_pylist() == [1, 3]
    assert [b.index for b in got.bad] == [1]


def test_no_payloads():
    assert decode().rows.num_rows == 0


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01 00:00", 0),
        ("1970-01-01T00:00:01.5", 1_500_000),
        ("1970-01-01T00:00:00.1234567", 123_456),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-01T01:00:00+0130", -1_800_000_000),
        ("1969-12-31T23:59:59-00", -1_000_000),
        ("2000-02-29T12:00:00Z", 951_825_600_000_000),
        ("1900-02-29T12:00:00Z", None),
        ("2024-01-01", None),
        ("2024-01-01T24:00:00Z", None),
        ("2024-01-01T00:60:00Z", None),
        ("2024-01-01T00:00:60Z", None),
        ("2024-01-01T00:00:00.Z", None),
        ("2024-01-01T00:00:00.1234567890Z", None),
        ("2024-01-01T00:00:00z", None),
        ("2024-01-01T00:00:00 Z", None),
        ("0000-01-01T00:00:00Z", None),
        ("0001-01-01T00:00:00+01:00", None),
    ],
)
def test_times_as_text_in_both_decoders(text, micros):
    assert micros_of_text(text) == micros
    got = decode(json.dumps({"id": 1, "ts": text}).encode())
    assert got.rows.column("ts").cast(pa.int64()).to_pylist() == ([] if micros is None else [micros])


@pytest.mark.parametrize(
    ("number", "unit", "micros"),
    [
        (1_700_000_000_000, "auto", 1_700_000_000_000_000),
        (1_700_000_000_000_000, "auto", 1_700_000_000_000_000),
        (99_999_999_999_999, "auto", 99_999_999_999_999_000),
        (100_000_000_000_000, "auto", 100_000_000_000_000),
        (1_700_000_000, "s", 1_700_000_000_000_000),
        (5, "us", 5),
        (-5, "ms", -5_000),
        (300_000_000_000, "s", None),
        (1 << 62, "auto", None),
    ],
)
def test_times_as_numbers_in_both_decoders(number, unit, micros):
    assert micros_of_number(number, unit) == micros
    got = decode(json.dumps({"id": 1, "ts": number}).encode(), timestamp_unit=unit)
    assert got.rows.column("ts").cast(pa.int64()).to_pylist() == ([] if micros is None else [micros])


@pytest.mark.parametrize(("unit", "value"), [("s", 1), ("ms", 1_500), ("us", 1_500_000), ("ns", 1_500_000_000)])
def test_time_units_of_the_schema(unit, value):
    schema = pa.schema([pa.field("t", pa.timestamp(unit))])
    assert decode(b'{"t":1500}', schema=schema).rows.column("t").cast(pa.int64()).to_pylist() == [value]


@pytest.mark.parametrize(
    ("kind", "good", "bad"), [(pa.int8(), 127, 128), (pa.uint16(), 65535, -1), (pa.int32(), -(2**31), 2**31)]
)
def test_narrow_integers(kind, good, bad):
    schema = pa.schema([pa.field("n", kind)])
    got = decode(b'{"n":%d}' % good, b'{"n":%d}' % bad, schema=schema)
    assert got.rows.column("n").to_pylist() == [good]
    assert len(got.bad) == 1


def test_nested_decimal_date_and_binary_fields():
    schema = pa.schema(
        [
            pa.field("tags", pa.list_(pa.string())),
            pa.field("price", pa.decimal128(9, 2)),
            pa.field("day", pa.date32()),
            pa.field("blob", pa.binary()),
            pa.field("inner", pa.struct([pa.field("x", pa.int64(), nullable=False)])),
        ]
    )
    row = {
        "tags": ["a", None],
        "price": decimal.Decimal("12.30"),
        "day": dt.date(2024, 2, 29),
        "blob": b"\x00\xff",
        "inner": {"x": 4},
    }
    text = b'{"tags":["a",null],"price":12.30,"day":"2024-02-29","blob":"AP8=","inner":{"x":4}}'
    got = decode(text, b'{"price":1.234}', b'{"inner":{}}', b'{"blob":"?"}', schema=schema)
    assert got.rows.to_pylist() == [row]
    assert len(got.bad) == 3
    assert decode(encode_json(got.rows)[0].as_py().encode(), schema=schema).rows.to_pylist() == [row]


def test_type_without_json_form_is_refused():
    with pytest.raises(GraphError, match="cannot be read from JSON"):
        JsonDecoder(pa.schema([("m", pa.duration("s"))]))


names = st.sampled_from(["id", "user", "amount", "ok", "ts", "other", "us", "usér"])
times = st.datetimes(min_value=dt.datetime(1, 1, 2), max_value=dt.datetime(9999, 12, 30)).map(lambda t: t.isoformat())
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | times
)
values = st.recursive(
    leaves, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=3), v, max_size=3), max_leaves=4
)
typed = st.fixed_dictionaries(
    {"id": st.integers(-(2**63), 2**63 - 1)},
    optional={
        "user": st.none() | st.text(),
        "amount": st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**60), 2**60),
        "ok": st.none() | st.booleans(),
        "ts": st.none() | times | st.integers(-(10**13), 10**17),
        "other": values,
    },
)
documents = typed | st.dictionaries(names, values, max_size=6)


@st.composite
def payload_bytes(draw):
    ascii_only, blanks = draw(st.booleans()), draw(st.sampled_from([(",", ":"), (" ,\n", "\t: "), (", ", ": ")]))
    text = json.dumps(draw(documents), ensure_ascii=ascii_only, separators=blanks)
    raw = bytearray(text.encode("utf-8", "surrogatepass"))
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        where = draw(st.integers(0, len(raw)))
        raw[where : where + draw(st.integers(0, 2))] = draw(
            st.sampled_from([b"", b'"', b",", b"}", b"1", b"\\", b"\xff", b" ", b"e"])
        )
    return bytes(raw)


def exact(payload):
    decoder = JsonRowDecoder(SCHEMA)
    try:
        return pa.RecordBatch.from_arrays(decoder.columns([decoder.decode(payload)]), schema=SCHEMA).to_pylist()[0]
    except RowError:
        return None


@given(st.lists(payload_bytes(), max_size=6))
@examples(400)
def test_compiled_pass_equals_the_exact_decoder(payloads):
    got = decode(*payloads)
    expected = [exact(payload) for payload in payloads]
    got.rows.validate(full=True)
    assert got.rows.to_pylist() == [row for row in expected if row is not None]
    assert [b.index for b in got.bad] == [i for i, row in enumerate(expected) if row is None]
    if got.payload_index is not None:
        assert got.payload_index.tolist() == [i for i, row in enumerate(expected) if row is not None]


rows_strategy = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.integers(-(2**63), 2**63 - 1),
            "user": st.none() | st.text(),
            "amount": st.none() | st.floats(allow_nan=False, allow_infinity=False),
            "ok": st.none() | st.booleans(),
            "ts": st.none()
            | st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31)).map(lambda t: t.replace(tzinfo=dt.UTC)),
        }
    ),
    max_size=8,
)


@given(rows_strategy)
@examples(200)
def test_round_trip(rows):
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    encoded = encode_json(batch)
    assert all("\n" not in text for text in encoded.to_pylist())
    back = JsonDecoder(SCHEMA).decode(encoded.cast(pa.large_binary()))
    assert back.bad == ()
    assert back.rows.to_pylist() == rows


def test_not_a_number_is_written_as_null():
    batch = pa.RecordBatch.from_pydict({"x": [math.nan, math.inf, 1.0]})
    assert [json.loads(t)["x"] for t in encode_json(batch).to_pylist()] == [None, None, 1.0]


def test_naive_and_zoned_times_are_written_in_utc():
    moment = pa.array([1_704_164_645_678_901])
    batch = pa.RecordBatch.from_arrays(
        [
            moment.cast(pa.timestamp("us")),
            moment.cast(pa.timestamp("us", tz="Europe/Berlin")),
            pa.array([1500]).cast(pa.timestamp("ms")),
        ],
        ["naive", "zoned", "ms"],
    )
    row = json.loads(encode_json(batch)[0].as_py())
    assert micros_of_text(row["naive"]) == micros_of_text(row["zoned"]) == 1_704_164_645_678_901
    assert micros_of_text(row["ms"]) == 1_500_000
