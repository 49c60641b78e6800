"""Operator state against plain lists: through rows, checkpoints, crashes and rescales no element is lost or doubled.

Snapshots go through JSON, as in a manifest, and are handed out by `graph.redistribute`.
"""

import json
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import NamedTuple

import msgspec
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.api.data_stream import DataStream, Flow
from penstock.api.process import compile_plain_process
from penstock.core.clock import ManualClock
from penstock.core.elements import Barrier, Batch
from penstock.core.schema import schema_to_text
from penstock.core.snapshot import OperatorStateSnapshot
from penstock.graph.redistribute import redistribute
from penstock.operators.plain_process import PlainProcessOperator

SCHEMA = pa.schema([pa.field("what", pa.string(), nullable=False), pa.field("n", pa.int64(), nullable=False)])


class Out(NamedTuple):
    n: int


class Note(NamedTuple):
    n: int
    text: str | None


class Keeps(ps.ProcessFunction):
    notes: ps.OperatorListState[Note] = ps.operator_list_state()
    counts: ps.UnionState[tuple[int, int]] = ps.union_state()

    def open(self, ctx: ps.OpenContext) -> None:
        self.subtask = ctx.subtask
        mine = [count for subtask, count in self.counts.restored if subtask % ctx.parallelism == ctx.subtask]
        self.count = sum(mine)

    def process(self, row, ctx: ps.RowContext) -> Iterator[Out]:
        self.count += 1
        if row.what == "add":
            self.notes.add(Note(row.n, None if row.n % 3 else str(row.n)))
        elif row.what == "drop":
            self.notes.set([note for note in self.notes if note.n != row.n])
        return iter(())

    def snapshot_state(self) -> None:
        self.counts.set([(self.subtask, self.count)])


class Job:
    """All subtasks, and what each of them has."""

    def __init__(self):
        stream = DataStream(None, Flow(upstreams=(), schema=SCHEMA))
        made = compile_plain_process(Keeps(), None, {}, stream=stream)
        self.spec = SimpleNamespace(
            uid="fn", name="fn", payload=made.spec.payload, config=made.spec.config,
            output_schema=schema_to_text(made.schema),
        )  # fmt: skip
        self.complete, self.counted = (1, ()), 0
        self.start(1)

    def start(self, parallelism):
        old, left = self.complete
        parts = redistribute(left, old, parallelism)
        self.subtasks = [self.open(subtask, part, parallelism) for subtask, part in enumerate(parts)]
        self.rows = self.counted
        self.models = [list(operator._function.notes) for operator in self.subtasks]

    def open(self, subtask, restored, parallelism):
        operator = PlainProcessOperator()
        operator.open(
            SimpleNamespace(
                spec=self.spec,
                job_name="j",
                subtask=subtask,
                parallelism=parallelism,
                clock=ManualClock(),
                input_schemas=(SCHEMA,),
                restored=restored,
            )
        )
        return operator

    def push(self, subtask, what, n):
        place = subtask % len(self.subtasks)
        batch = pa.record_batch({"what": pa.array([what]), "n": pa.array([n])}, schema=SCHEMA)
        self.subtasks[place].process_batch(Batch(batch), 0, None)
        self.rows += 1
        if what == "add":
            self.models[place].append(Note(n, None if n % 3 else str(n)))
        else:
            self.models[place] = [note for note in self.models[place] if note.n != n]

    def checkpoint(self):
        left = []
        for subtask, operator in enumerate(self.subtasks):
            for state in operator.snapshot(Barrier(1), None).operator:
                data = json.loads(json.dumps(msgspec.to_builtins(state), allow_nan=False))
                left.append((subtask, msgspec.convert(data, OperatorStateSnapshot)))
        self.complete, self.counted = (len(self.subtasks), tuple(left)), self.rows
        self.saved = Counter(note for model in self.models for note in model)

    saved = Counter()


STEPS = st.one_of(
    st.tuples(st.just("row"), st.tuples(st.integers(0, 3), st.sampled_from(["add", "add", "drop"]), st.integers(0, 9))),
    st.tuples(st.just("checkpoint"), st.none()),
    st.tuples(st.just("start"), st.integers(1, 4)),
)


@given(st.lists(STEPS, max_size=40))
def test_every_element_is_in_one_subtask_and_a_union_in_all(steps):
    job = Job()
    for what, argument in steps:
        if what == "row":
            job.push(*argument)
        elif what == "checkpoint":
            job.checkpoint()
        else:
            same = argument == job.complete[0]
            job.start(argument)
            assert Counter(note for model in job.models for note in model) == job.saved
            sizes = [len(model) for model in job.models]
            assert same or max(sizes) - min(sizes) <= 1, "dealt out evenly"
            for operator in job.subtasks:
                assert sum(count for _, count in operator._function.counts.restored) == job.counted
        assert [list(operator._function.notes) for operator in job.subtasks] == job.models
        assert sum(operator._function.count for operator in job.subtasks) == job.rows
