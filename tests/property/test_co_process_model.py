"""Functions of two connected streams over their shared state against a plain Python model.

Any order of rows of both sides, watermarks, freezes, failed uploads, compactions, restores and rescales gives the
model's rows.
"""

from collections.abc import Iterator
from typing import NamedTuple

from tests.property.harness.backends import MEMORY, leaving, on
from tests.property.harness.functions import spec_of_two_inputs
from tests.property.harness.histories import end, play
from tests.property.harness.job import Job
from tests.property.harness.sides import KEYS, OPERATIONS, Sides, inputs, key_of

import penstock as ps
from penstock.api.functions.process_functions import CO_PROCESS
from penstock.core.elements import TS_COLUMN


class Out(NamedTuple):
    k: str | None
    what: str
    seen: int
    newest: str | None


class Both(ps.KeyedCoProcessFunction):
    """Counts the left rows, keeps the newest text of the right ones, and tells both when a timer comes."""

    seen: ps.ValueState[int] = ps.value_state()
    newest: ps.ValueState[str] = ps.value_state()

    def process1(self, row, ctx) -> Iterator[Out]:
        self.seen.update((self.seen.value() or 0) + 1)
        if row.id % 5 == 0:
            ctx.timers.event(ctx.timestamp + 40)
        if row.v is not None:
            yield Out(ctx.key, f"left {row.s}", self.seen.value() or 0, self.newest.value())

    def process2(self, row, ctx) -> None:
        self.newest.update(f"{row.id} {len(row.tags)}")
        if row.k:
            ctx.timers.event(ctx.timestamp + 25)
        elif row.id % 4 == 0:
            self.seen.clear()

    def on_timer(self, timestamp, ctx):
        yield Out(ctx.key, f"timer {timestamp}", self.seen.value() or 0, self.newest.value())


class Model:
    """The same over dicts."""

    def __init__(self):
        self.seen, self.newest = dict.fromkeys(KEYS, 0), dict.fromkeys(KEYS)
        self.timers = {key: set() for key in KEYS}

    def row(self, side, row):
        key, time = key_of(side, row), row[TS_COLUMN]
        if side:
            self.newest[key] = f"{row['id']} {len(row['tags'])}"
            if row["k"]:
                self.timers[key].add(time + 25)
            elif row["id"] % 4 == 0:
                self.seen[key] = 0
            return []
        self.seen[key] += 1
        if row["id"] % 5 == 0:
            self.timers[key].add(time + 40)
        return [] if row["v"] is None else [self.result(key, f"left {row['s']}", time)]

    def advance(self, keys, watermark):
        due = [(key, time) for key in keys for time in self.timers[key] if time <= watermark]
        for key, time in due:
            self.timers[key].remove(time)
        return [self.result(key, f"timer {time}", time) for key, time in due]

    def result(self, key, what, time):
        return {"k": key, "what": what, "seen": self.seen[key], "newest": self.newest[key], TS_COLUMN: time}


class Steps:
    """Rows of both sides, and watermarks, which may be behind what the function has seen before a restart."""

    def __init__(self, job):
        self.job, self.sides = job, Sides(job)
        self.batch = self.sides.batch

    def watermark(self, subtask, further):
        subtask %= len(self.job.subtasks)
        self.mark(subtask, self.sides.pace.mark(further, self.job.marks[subtask]))

    def mark(self, subtask, timestamp):
        if timestamp > self.job.operators[subtask]._context.watermark:
            self.sides.mark(subtask, timestamp)
        else:
            self.sides.compare([self.job.watermark(subtask, timestamp)], [])  # timers wait for one that goes on


@on((MEMORY, 40), (leaving(1), 20))
def test_any_history_gives_the_models_rows(backend):
    backend.check(run, history=OPERATIONS)


def run(backend, history):
    spec = spec_of_two_inputs(CO_PROCESS, Both(), inputs())
    with Job(spec, inputs(), KEYS, Model(), backend) as job:
        steps = Steps(job)
        play(history, steps, job)
        job.rescale(3)
        end(job, steps)
