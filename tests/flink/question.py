"""What is asked of both engines: a query in Flink's SQL, and the same as a penstock job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.flink.streams import BOUND_MS

import penstock as ps

Job = Callable[[ps.DataStream], ps.DataStream]


@dataclass(frozen=True)
class Question:
    """One question and the input it is asked of."""

    name: str
    sql: str
    #: From the rows to the columns of the query, in its order.
    job: Job
    #: Of `tests.flink.streams`; its rows carry watermarks, but for those of `disorder` and `versions`.
    stream: str = "late"
    seed: int = 1
    #: Statements before the query.
    views: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    #: Of Flink's session; times are then `TIMESTAMP_LTZ`.
    time_zone: str = ""
    #: Rows with the same values in so many columns in front replace each other; 0: all rows stay.
    upsert: int = 0

    @property
    def bound_ms(self) -> int | None:
        """How far rows may be out of order; None where rows carry watermarks."""
        return BOUND_MS if self.stream in ("disorder", "versions") else None
