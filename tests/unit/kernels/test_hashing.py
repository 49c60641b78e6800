"""Key hashes: known values of Spark, and the canonical form of every type."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from penstock.core.errors import GraphError
from penstock.kernels.keys.hashing import hash_columns


def hashes(*columns):
    names = tuple(f"c{i}" for i in range(len(columns)))
    return hash_columns(pa.RecordBatch.from_arrays(list(columns), names=names), names).tolist()


def test_what_spark_computes():
    assert hashes(pa.array([1], pa.int64())) == [-7001672635703045582]
    assert hashes(pa.array(["Spark", "ABC"])) == [-4294468057691064905, 4105715581806190027]
    assert hashes(pa.array([1.0])) == [-2162451265447482029]


def test_a_null_leaves_the_seed():
    assert hashes(pa.array([None], pa.int64())) == [42]
    one, null = pa.array([1], pa.int64()), pa.array([None], pa.int64())
    assert hashes(null, one) == hashes(one, null) == hashes(one)


def test_all_integers_and_booleans_are_one_type():
    expected = hashes(pa.array([0, 1], pa.int64()))
    for kind in (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()):
        assert hashes(pa.array([0, 1], kind)) == expected
    assert hashes(pa.array([False, True])) == expected
    assert hashes(pa.array([-1], pa.int8())) == hashes(pa.array([-1], pa.int64()))


def test_floats_have_one_zero_and_one_nan():
    assert len(set(hashes(pa.array([0.0, -0.0])))) == 1
    assert len(set(hashes(pa.array([float("nan"), -float("nan")])))) == 1
    assert hashes(pa.array([1.5, -2.25], pa.float32())) == hashes(pa.array([1.5, -2.25]))


def test_timestamps_are_microseconds_whatever_their_unit():
    moment = dt.datetime(2024, 5, 1, 12, 0, 1)
    expected = hashes(pa.array([int(moment.replace(tzinfo=dt.UTC).timestamp() * 1_000_000)]))
    for unit in ("s", "ms", "us"):
        assert hashes(pa.array([moment], pa.timestamp(unit))) == expected
        assert hashes(pa.array([moment], pa.timestamp(unit, "UTC"))) == expected
    nanos = pa.array([moment], pa.timestamp("ns"))
    assert hashes(nanos) == hashes(nanos.cast(pa.int64()))


def test_dates_are_days():
    day = dt.date(2024, 5, 1)
    expected = hashes(pa.array([(day - dt.date(1970, 1, 1)).days]))
    assert hashes(pa.array([day])) == hashes(pa.array([day], pa.date64())) == expected


def test_short_decimals_are_their_unscaled_number():
    assert hashes(pa.array([Decimal("-12.34")], pa.decimal128(12, 2))) == hashes(pa.array([-1234]))


def test_long_decimals_are_their_shortest_bytes():
    for number in (0, 1, -1, 127, 128, -128, -129, 10**25, -(10**25)):
        size = (number if number >= 0 else ~number).bit_length() // 8 + 1
        expected = hashes(pa.array([number.to_bytes(size, "big", signed=True)], pa.binary()))
        assert hashes(pa.array([Decimal(number)], pa.decimal128(38, 0))) == expected


def test_strings_of_every_width_are_the_same():
    words = ["", "a", "abc", "abcd", "abcdefgh", "x" * 31, "x" * 32, "x" * 33, "é漢字" * 20, None]
    expected = hashes(pa.array(words))
    assert hashes(pa.array(words, pa.large_string())) == expected
    assert hashes(pa.array(words).dictionary_encode()) == expected
    assert hashes(pa.array(words).cast(pa.binary())) == expected


def test_slices():
    words = pa.array([None, "b", "c", None, "e"] * 5)
    assert hashes(words.slice(3, 9)) == hashes(words)[3:12]
    flags = pa.array([None, True, False] * 7)
    assert hashes(flags.slice(5)) == hashes(flags)[5:]
    assert hashes(words.slice(25)) == []


def test_a_list_is_no_key():
    with pytest.raises(GraphError, match="'c0' of type list"):
        hashes(pa.array([[1]]))
