"""w5: the windows of w1 as user code, a Python row function with value state and a timer for each key and window.

Rows are out of order by 5 s, and sources ahead of each other, so a key has rows of several windows at a time. It has a
state for each of four windows, in turn: count and sum as a tuple, as in the peers' functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import penstock as ps
from penstock_lab.bench.jobs.sources import Events, environment, events_of, timed
from penstock_lab.bench.jobs.topics import Topics
from penstock_lab.bench.measuring import reference
from penstock_lab.bench.measuring.measure import BenchJob, measure_job

if TYPE_CHECKING:
    from pathlib import Path

    from penstock_lab.bench.options import BenchOptions

_EVENTS = 5_000_000
_SIZE_MS = 10_000
_SIZE_US = _SIZE_MS * 1000


class Event(ps.Schema):
    """The columns of an event that the function reads."""

    user_id: int
    amount: int


class Total(NamedTuple):
    """The result of a window."""

    user_id: int
    window_end: int
    cnt: int
    sm: int


class Windows(ps.KeyedProcessFunction):
    """Counts and sums in user code, as a tumbling window of 10 s does."""

    first: ps.ValueState[tuple[int, int]] = ps.value_state()
    second: ps.ValueState[tuple[int, int]] = ps.value_state()
    third: ps.ValueState[tuple[int, int]] = ps.value_state()
    fourth: ps.ValueState[tuple[int, int]] = ps.value_state()

    def open(self, ctx: ps.OpenContext) -> None:
        """Collect the states in a ring."""
        del ctx
        self.ring = (self.first, self.second, self.third, self.fourth)

    def process(self, row: Event, ctx: ps.ProcessContext) -> Iterator[Total] | None:
        """Add the row to its window; the first row sets the timer."""
        window = ctx.timestamp // _SIZE_US
        state = self.ring[window % 4]
        running = state.value()
        if running is None:
            state.update((1, row.amount))
            ctx.timers.event((window + 1) * _SIZE_US - 1)
        else:
            state.update((running[0] + 1, running[1] + row.amount))
        return None

    def on_timer(self, timestamp: int, ctx: ps.ProcessContext) -> Iterator[Total]:
        """Emit the window and clear it."""
        state = self.ring[timestamp // _SIZE_US % 4]
        running = state.value()
        if running is not None:
            yield Total(ctx.key, timestamp + 1, *running)
            state.clear()


def w5(options: BenchOptions) -> dict[str, Any]:
    """Measure the workload."""
    options.refuse_variants("w5")
    count = options.events_or(_EVENTS)
    right = cache(lambda events: reference.windows(events, _SIZE_MS, _SIZE_MS))
    prepare = None if options.bootstrap is None else Topics(options.bootstrap, keyed=True).trial
    build = "penstock_lab.bench.jobs.process:build"
    job = BenchJob(workload="w5", build=build, right=right, events=count, results="windows", prepare=prepare)
    return measure_job(job, options)


def build(options: BenchOptions, folder: Path) -> None:
    """Run the job."""
    from penstock_lab.workloads import ChecksumSink

    count = options.events_or(_EVENTS)
    env = environment(options, folder)
    sink = ChecksumSink(
        folder=str(folder / "marks"),
        form="windows",
        columns=("user_id", "window_end", "cnt", "sm"),
        unit_us=_SIZE_US,
        cut_us=reference.last_sure_window(count, _SIZE_MS) * 1000,
        **timed(options, "windows"),
    )
    events = events_of(env, options, folder, Events(count=count, results="windows"))
    windows = events.key_by("user_id").process(Windows(), returns=Total).uid("windows")
    windows.sink_to(sink, uid="out")
    env.execute("bench")
