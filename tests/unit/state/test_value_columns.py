"""Columns of row state: values come back bit by bit."""

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest

from penstock.kernels.keys.key_columns import value_column
from penstock.kernels.rows.python_values import plain_values, python_values
from penstock.state.keys.column_store import new_store


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32(), pa.float16()])
def test_floats_keep_the_sign_of_zero_and_nulls(kind):
    values = np.array([-0.0, 0.0, np.nan, 1.5], kind.to_pandas_dtype())
    column = new_store(kind, 5, 0)
    column.append(value_column(pa.array(values, kind)), np.arange(4, dtype=np.int32), 0)
    column.append(value_column(pa.array([None], kind)), np.zeros(1, np.int32), 4)
    found = column.array(np.arange(5, dtype=np.int32))
    assert found.null_count == 1
    assert np.signbit(found.slice(0, 2).to_numpy()).tolist() == [True, False]
    assert str(plain_values(column.array(np.arange(4, dtype=np.int32)))) == "[-0.0, 0.0, nan, 1.5]"


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
@pytest.mark.parametrize("zone", ["UTC", None])
def test_times_are_those_of_arrow(unit, zone):
    tz = None if zone is None else dt.UTC
    moments = [dt.datetime(1, 1, 1), dt.datetime(1969, 12, 31, 23, 59, 59, 999_999), dt.datetime.max]
    given = pa.array([moment.replace(tzinfo=tz) for moment in moments], pa.timestamp("us", zone))
    array = given.cast(pa.timestamp(unit, zone), safe=False)
    found = python_values(array)
    assert found == array.to_pylist()
    assert {value.tzinfo for value in found} == {tz}
