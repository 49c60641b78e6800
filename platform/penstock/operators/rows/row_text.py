"""Rows and values as short text for errors: secrets redacted, long values cut.

Called after a failure by the operators that run users' code, for `PenstockError.values`.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from penstock.core.secrets import REDACTED, is_secret_name, redacted
from penstock.kernels.rows.python_values import python_values

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

#: Characters of a row, and of one of its values.
_LONGEST_ROW, _LONGEST_VALUE = 450, 100
#: Types whose text is shorter than what Python writes.
_READABLE = (dt.date, dt.time, dt.timedelta, Decimal)


def value_text(value: Any, most: int = _LONGEST_ROW) -> str:
    """Return a value of the user's as Python writes it; a `__repr__` that raises is no second failure."""
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - user code
        return f"<{type(value).__name__} whose __repr__ raised {type(error).__name__}>"
    return short_text(text, most)


def short_text(text: str, most: int = _LONGEST_ROW) -> str:
    """Return a text with values of the user's in one line of `most` characters, without secrets."""
    return redacted(" ".join(text.split()), most, "...")


def row_text(batch: pa.RecordBatch, index: int, names: Iterable[str]) -> str:
    """Return these columns of a batch's row as `name=value, ...`."""
    text = ""
    for number, name in enumerate(names):
        part = _cell(name, python_values(batch.column(name).slice(index, 1))[0])
        if len(text) + len(part) > _LONGEST_ROW:
            return f"{text}, and further columns" if number else part
        text += f"{', ' if number else ''}{part}"
    return text


def numbered_row(batch: pa.RecordBatch, index: int, names: Iterable[str]) -> str:
    """Return a row with its place in its batch."""
    return f"row {index + 1:,} of a batch of {batch.num_rows:,}: {row_text(batch, index, names)}"


def batch_text(batch: pa.RecordBatch, names: Iterable[str]) -> str:
    """Return a batch's size and first row, for code that takes whole batches."""
    if not batch.num_rows:
        return "an empty batch"
    return f"first row of a batch of {batch.num_rows:,}: {row_text(batch, 0, names)}"


def window_text(window: Any) -> str:
    """Return the bounds of a window in UTC; those of a global window have no meaning."""
    start, end = (_moment(edge) for edge in (window.start, window.end))
    return f"window {start} to {end}" if start and end else "the global window"


def timer_text(time_us: int, key: Any) -> str:
    """Return a timer's time and key."""
    return f"timer at {_moment(time_us) or time_us}, key {value_text(key, _LONGEST_VALUE)}"


def _moment(time_us: int) -> str:
    try:
        return str(dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=time_us))  # noqa: DTZ001 - shown in UTC
    except OverflowError:
        return ""


def _cell(name: str, value: Any) -> str:
    if isinstance(value, (str, bytes)) and is_secret_name(name):
        return f"{name}={REDACTED}"
    if isinstance(value, _READABLE):
        return f"{name}={value}"
    return f"{name}={value_text(value, _LONGEST_VALUE)}"
