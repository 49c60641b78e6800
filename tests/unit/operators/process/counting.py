"""A process function with a value and timers, for the tests of this folder."""

from collections.abc import Iterator
from typing import NamedTuple

import penstock as ps


class Out(NamedTuple):
    k: int
    what: str
    n: int | None


class Counting(ps.KeyedProcessFunction):
    """Counts a key's rows; at the end of each ten microseconds says how many there were, and forgets them."""

    count: ps.ValueState[int] = ps.value_state()

    def process(self, row, ctx) -> Iterator[Out]:
        n = (self.count.value() or 0) + 1
        self.count.update(n)
        ctx.timers.event(ctx.timestamp // 10 * 10 + 9)
        if row.v:
            yield Out(ctx.key, "row", n)

    def on_timer(self, timestamp, ctx):
        yield Out(ctx.key, f"{ctx.time_domain}@{timestamp}", self.count.value())
        self.count.clear()
