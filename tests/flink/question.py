"""What is asked of both engines: a query in Flink's SQL or a method of `java/`, and the same as a penstock job."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.flink.streams import BOUND_MS

import penstock as ps

JAVA = Path(__file__).with_name("java")
#: What all programs use.
_SHARED = ("Rows", "Listings", "CumulativeWindows")
Job = Callable[[ps.DataStream], ps.DataStream]


@dataclass(frozen=True)
class Question:
    """One question and the input it is asked of."""

    name: str
    #: A query; or a class and method of `java/` with Flink's DataStream API, such as "Windows.session".
    asked: str
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
    def in_java(self) -> bool:
        """Whether Flink is asked by a program."""
        return " " not in self.asked

    def words(self) -> list[str]:
        """Return what Flink is asked word for word, but for programs: of those, what tells their sources apart."""
        if not self.in_java:
            return [*self.views, self.asked]
        program = self.asked.split(".")[0]
        sources = [JAVA / f"{name}.java" for name in (*_SHARED, program)]
        return [self.asked, hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]]

    @property
    def bound_ms(self) -> int | None:
        """How far rows may be out of order; None where rows carry watermarks."""
        return BOUND_MS if self.stream in ("disorder", "versions") else None
