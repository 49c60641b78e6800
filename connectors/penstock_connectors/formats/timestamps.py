"""Times in JSON: the accepted spellings, and their value in microseconds since the epoch, UTC.

Accepted: ISO 8601 `YYYY-MM-DD`, then `T` or one blank, then `HH:MM`, `HH:MM:SS` or `HH:MM:SS.f` with one to nine digits
(those after the sixth are dropped), then nothing (UTC), `Z`, or an offset `+HH`, `+HHMM`, `+HH:MM`. Also accepted:
integers, in the user's unit, or `auto`: below 10^14 in magnitude they are milliseconds (up to the year 5138), else
microseconds. Everything else is a bad record. `json_kernels` contains the compiled version; used by `json_rows`.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import Literal

TimestampUnit = Literal["auto", "s", "ms", "us"]

#: Integers of at least this magnitude are microseconds when the unit is `auto`.
AUTO_MICROS_FROM = 100_000_000_000_000
#: 0001-01-01 and the last microsecond of 9999, the range of ISO 8601's four-digit years.
MIN_MICROS = -62_135_596_800_000_000
MAX_MICROS = 253_402_300_799_999_999
_FACTOR = {"s": 1_000_000, "ms": 1_000, "us": 1}
_ISO = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})[T ](\d{2}):(\d{2})(?::(\d{2})(?:\.(\d{1,9}))?)?(?:Z|([+-])(\d{2})(?::?(\d{2}))?)?",
    re.ASCII,
)
_EPOCH_DAY = dt.date(1970, 1, 1).toordinal()
_DAY_MICROS = 86_400_000_000


def micros_of_text(text: str) -> int | None:
    """Return the microseconds of an ISO 8601 text, or None if it is not an accepted spelling."""
    match = _ISO.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute = (int(part) for part in match.group(1, 2, 3, 4, 5))
    second = int(match[6] or 0)
    if hour > 23 or minute > 59 or second > 59:
        return None
    try:
        days = dt.date(year, month, day).toordinal() - _EPOCH_DAY
    except ValueError:
        return None
    fraction = int((match[7] or "0").ljust(6, "0")[:6])
    micros = days * _DAY_MICROS + ((hour * 60 + minute) * 60 + second) * 1_000_000 + fraction
    if match[8]:
        hours, minutes = int(match[9]), int(match[10] or 0)
        if hours > 23 or minutes > 59:
            return None
        offset = (hours * 60 + minutes) * 60_000_000
        micros += offset if match[8] == "-" else -offset
    return micros if MIN_MICROS <= micros <= MAX_MICROS else None


def micros_of_number(number: int, unit: TimestampUnit) -> int | None:
    """Return the microseconds of an integer in `unit`, or None if it is outside the years 1 to 9999."""
    if unit == "auto":
        micros = number * 1000 if -AUTO_MICROS_FROM < number < AUTO_MICROS_FROM else number
    else:
        micros = number * _FACTOR[unit]
    return micros if MIN_MICROS <= micros <= MAX_MICROS else None


def days_of_text(text: str) -> int | None:
    """Return the days since the epoch of `YYYY-MM-DD`, or None."""
    if re.fullmatch(r"\d{4}-\d{2}-\d{2}", text, re.ASCII) is None:
        return None
    try:
        return dt.date.fromisoformat(text).toordinal() - _EPOCH_DAY
    except ValueError:
        return None
