"""Windows in a time zone: converts instants of rows and watermarks to wall-clock time, and window bounds back.

Windows of a zone follow its wall clock, so a day has 23 or 25 hours when the clock changes. Skipped wall-clock times do
not exist; a repeated hour is one hour of windows, which fire after its second occurrence. All times are int64
microseconds. Used by `operators.windows.zoned_window`; the graph calls `require_zone` beforehand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import GraphError

if TYPE_CHECKING:
    from penstock.kernels.compiler.compile import I64

#: Times further from 1970 than 9,000 years have the same offset in all zones.
_LIMIT = 1 << 58
#: Upper bound of a clock change.
_LARGEST_STEP = 48 * 3_600_000_000


def require_zone(name: Any) -> str:
    """Return the name if it is that of a time zone.

    Raises:
        GraphError: it is not.
    """
    try:
        TimeZone(str(name)).local(np.zeros(1, np.int64))
    except pa.ArrowException as error:
        msg = f"time_zone={name!r}: there is no such time zone"
        raise GraphError(msg, hint="use a name such as 'Europe/Berlin'; the host needs the package tzdata") from error
    return str(name)


class TimeZone:
    """The wall clock of one zone."""

    def __init__(self, name: str) -> None:
        """`name` as in the IANA database."""
        self._name = name
        self._type: Any = pa.timestamp("us", tz=name)

    def local(self, times: I64) -> I64:
        """Return the wall-clock times of these instants."""
        near = np.abs(times) < _LIMIT
        instants = times if near.all() else np.where(near, times, 0)
        shown: I64 = pc.local_timestamp(pa.array(instants).view(self._type)).view(pa.int64()).to_numpy()
        return shown if near.all() else np.where(near, shown, times)

    def instant(self, shown: int, *, last: bool) -> int:
        """Return the instant of a wall-clock time: the first or last one; skipped times map to the clock change."""
        if abs(shown) >= _LIMIT:
            return shown
        at = pa.array([shown]).view(pa.timestamp("us"))
        ambiguous = "latest" if last else "earliest"
        found = pc.assume_timezone(at, self._name, ambiguous=ambiguous, nonexistent="latest")
        return int(found.view(pa.int64())[0].as_py())

    def local_watermark(self, watermark: int) -> int:
        """Return the wall-clock time up to which all times have occurred for the last time at `watermark`."""
        if abs(watermark) >= _LIMIT:
            return watermark
        now = watermark + 1
        high = int(self.local(np.array([now], np.int64))[0])
        if self.instant(high, last=True) <= now:
            return high - 1
        low = high - _LARGEST_STEP
        while high - low > 1:  # low has passed, high has not
            middle = (low + high) // 2
            if self.instant(middle, last=True) <= watermark:
                low = middle
            else:
                high = middle
        return low
