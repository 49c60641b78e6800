"""Broadcast state beside state by key against a plain model, through crashes and rescales."""

from collections.abc import Iterator
from typing import NamedTuple

from tests.property.harness.backends import MEMORY, leaving, on
from tests.property.harness.functions import spec_of_two_inputs
from tests.property.harness.histories import end, play
from tests.property.harness.job import Input, Job
from tests.property.harness.sides import KEYS, LEFT, OPERATIONS, RIGHT, Sides

import penstock as ps
from penstock.api.functions.process_functions import BROADCAST_PROCESS
from penstock.core.elements import TS_COLUMN


class Rule(NamedTuple):
    id: int
    text: str | None


class Out(NamedTuple):
    k: str | None
    seen: int
    rules: str


class Rules(ps.KeyedBroadcastProcessFunction):
    """Counts the rows of a key and shows the rules there are."""

    rules: ps.BroadcastState[int, Rule] = ps.broadcast_state()
    last: ps.BroadcastState[str, int] = ps.broadcast_state()
    seen: ps.ValueState[int] = ps.value_state()

    def process(self, row, ctx) -> Iterator[Out]:
        self.seen.update((self.seen.value() or 0) + 1)
        rules = " ".join(f"{n}:{rule.id},{rule.text}" for n, rule in sorted(self.rules.items()))
        yield Out(ctx.key, self.seen.value() or 0, f"{rules} {self.last.get('id')} {self.last.contains('none')}")

    def process_broadcast(self, row, ctx) -> None:
        self.last.put("id", row.id)
        if row.id % 7 == 0:
            self.rules.remove(row.id % 5)
        elif row.id % 31 == 0:
            self.rules.clear()
        else:
            self.rules.put(row.id % 5, Rule(row.id, row.key))


class Model:
    """The same over dicts."""

    def __init__(self):
        self.rules, self.last, self.seen = {}, None, dict.fromkeys(KEYS, 0)

    def row(self, side, row):
        if side:
            self.rule(row["id"], row["key"])
            return []
        key = row["k"]
        self.seen[key] += 1
        rules = " ".join(f"{n}:{rule[0]},{rule[1]}" for n, rule in sorted(self.rules.items()))
        return [{"k": key, "seen": self.seen[key], "rules": f"{rules} {self.last} False", TS_COLUMN: row[TS_COLUMN]}]

    def rule(self, number, text):
        self.last = number
        if number % 7 == 0:
            self.rules.pop(number % 5, None)
        elif number % 31 == 0:
            self.rules.clear()
        else:
            self.rules[number % 5] = (number, text)

    def advance(self, keys, watermark):
        return []


@on((MEMORY, 40), (leaving(1), 20))
def test_any_history_gives_the_models_rows(backend):
    backend.check(run, history=OPERATIONS)


def run(backend, history):
    sides = Input(LEFT, ("k",)), Input(RIGHT, ())
    with Job(spec_of_two_inputs(BROADCAST_PROCESS, Rules(), sides), sides, KEYS, Model(), backend) as job:
        steps = Sides(job)
        play(history, steps, job)
        job.rescale(3)
        steps.batch(0, 1, 40, 0)
        end(job, steps)
