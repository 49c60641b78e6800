"""Functions beside a broadcast stream against a plain Python model, through crashes and rescales."""

import tempfile
from collections.abc import Iterator
from types import SimpleNamespace
from typing import NamedTuple

from hypothesis import given
from tests.property.two_inputs import KEYS, LEFT, OPERATIONS, RIGHT, UID, Job, run
from tests.support.depth import examples

import penstock as ps
from penstock.api.connected_streams import _BROADCAST, compile_two_input
from penstock.api.data_stream import DataStream, Flow
from penstock.api.keyed_stream import KeyedStream
from penstock.core.elements import MAX_TIMESTAMP, TS_COLUMN
from penstock.core.schema import schema_to_text


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

    late = 0

    def __init__(self):
        self.rules, self.last, self.seen = {}, None, dict.fromkeys(KEYS, 0)

    def copy(self):
        other = Model()
        other.rules, other.last, other.seen = dict(self.rules), self.last, dict(self.seen)
        return other

    def row(self, side, row):
        number = row["id"]
        if side:
            self.last = number
            if number % 7 == 0:
                self.rules.pop(number % 5, None)
            elif number % 31 == 0:
                self.rules.clear()
            else:
                self.rules[number % 5] = (number, row["key"])
            return []
        key = row["k"]
        self.seen[key] += 1
        rules = " ".join(f"{n}:{rule[0]},{rule[1]}" for n, rule in sorted(self.rules.items()))
        return [{"k": key, "seen": self.seen[key], "rules": f"{rules} {self.last} False", TS_COLUMN: row[TS_COLUMN]}]

    def advance(self, keys, watermark):
        return []


def spec():
    flows = [Flow(upstreams=(), schema=schema) for schema in (LEFT, RIGHT)]
    streams = KeyedStream(None, flows[0], ("k",)), DataStream(None, flows[1])
    made = compile_two_input(_BROADCAST, Rules(), None, {}, streams)
    text = schema_to_text(made.schema)
    return SimpleNamespace(
        uid=UID, kind="broadcast_process", payload=made.spec.payload, config=made.spec.config, output_schema=text
    )


@examples(40)
@given(operations=OPERATIONS)
def test_any_history_gives_the_models_rows(operations):
    with tempfile.TemporaryDirectory() as folder:
        job = Job(folder, spec(), Model(), broadcast=True)
        run(job, operations)
        job.checkpoint()
        job.restart(3)
        job.batch(0, 1, 40, 0)
        for subtask in range(3):
            job.watermark(subtask, MAX_TIMESTAMP)
        job.close()
