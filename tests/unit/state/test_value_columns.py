"""Columns of row state: values come back bit by bit."""

import numpy as np
import pyarrow as pa
import pytest

from penstock.state.tables.value_table import column_of


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32(), pa.float16()])
def test_floats_keep_the_sign_of_zero_and_nulls(kind):
    values = np.array([-0.0, 0.0, np.nan, 1.5], kind.to_pandas_dtype())
    column = column_of(kind, 5)
    column.put(0, pa.array(values, kind))
    column.put(4, pa.array([None], kind))
    found = column.array(np.arange(5, dtype=np.int32))
    assert found.null_count == 1
    assert np.signbit(found.slice(0, 2).to_numpy()).tolist() == [True, False]
    assert str(column.values(np.arange(4, dtype=np.int32))) == "[-0.0, 0.0, nan, 1.5]"
