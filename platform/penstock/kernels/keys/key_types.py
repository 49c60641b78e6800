"""The Arrow types that can be keys, without loading a compiler.

The API validates with it, `kernels.keys.key_columns` converts by it.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pt


def is_fixed(data_type: pa.DataType) -> bool:
    """Return whether values of the type fit a canonical int64."""
    return bool(
        pt.is_integer(data_type)
        or pt.is_boolean(data_type)
        or pt.is_floating(data_type)
        or pt.is_timestamp(data_type)
        or pt.is_date(data_type)
        or pt.is_time(data_type)
        or pt.is_duration(data_type)
        or (pt.is_decimal128(data_type) and data_type.precision <= 18)
    )


def is_key_type(data_type: pa.DataType) -> bool:
    """Return whether a column of the type can be (part of) a key."""
    if is_fixed(data_type):
        return True
    return bool(
        pt.is_string(data_type)
        or pt.is_large_string(data_type)
        or pt.is_binary(data_type)
        or pt.is_large_binary(data_type)
        or pt.is_fixed_size_binary(data_type)
        or pt.is_decimal128(data_type)
        or (pt.is_dictionary(data_type) and is_key_type(data_type.value_type))
    )
