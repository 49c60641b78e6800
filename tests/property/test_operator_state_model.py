"""Operator state against plain lists: through rows, checkpoints, crashes and rescales no element is lost or doubled."""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
from hypothesis import strategies as st
from tests.property.harness.backends import MEMORY, on
from tests.property.harness.functions import spec_of_function
from tests.property.harness.histories import operations, play, step
from tests.property.harness.job import Input, Job

import penstock as ps

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


class Model:
    """The elements of each subtask, and how many rows there were."""

    def __init__(self):
        self.notes, self.rows = [[]], 0

    def row(self, subtask, what, n):
        self.rows += 1
        if what == "add":
            self.notes[subtask].append(Note(n, None if n % 3 else str(n)))
        else:
            self.notes[subtask] = [note for note in self.notes[subtask] if note.n != n]


class Steps:
    """Rows for one subtask, and what a restart hands out."""

    def __init__(self, job):
        self.job = job

    def rows(self, subtask, rows):
        subtask %= len(self.job.subtasks)
        self.job.push(subtask, rows)
        for row in rows:
            self.job.model.row(subtask, *row)
        self.look()

    def start(self, parallelism):
        self.job.start(parallelism)
        model, functions = self.job.model, self.functions
        saved, model.notes = model.notes, [list(function.notes) for function in functions]
        if parallelism == len(saved):
            assert model.notes == saved, "each goes on with its own"
        assert elements(model.notes) == elements(saved)
        sizes = [len(notes) for notes in model.notes]
        assert parallelism == len(saved) or max(sizes) - min(sizes) <= 1, "dealt out evenly"
        for function in functions:
            assert sum(count for _, count in function.counts.restored) == model.rows
        self.look()

    def rescale(self, parallelism):
        self.job.checkpoint()
        self.start(parallelism)

    @property
    def functions(self):
        return [operator._function for operator in self.job.operators]

    def look(self):
        """Every element is in one subtask."""
        assert [list(function.notes) for function in self.functions] == self.job.model.notes
        assert sum(function.count for function in self.functions) == self.job.model.rows


def elements(notes):
    return Counter(note for mine in notes for note in mine)


ROW = st.tuples(st.sampled_from(["add", "add", "drop"]), st.integers(0, 9))
OPERATIONS = operations(
    step("rows", st.integers(0, 3), st.lists(ROW, min_size=1, max_size=5), times=4),
    step("rescale", st.integers(1, 4), times=2),
    least=8,
    most=40,
)


@on((MEMORY, 100))
def test_every_element_is_in_one_subtask_and_a_union_in_all(backend):
    backend.check(run, history=OPERATIONS)


def run(backend, history):
    with Job(spec_of_function(Keeps(), SCHEMA, ()), (Input(SCHEMA, ()),), [], Model(), backend) as job:
        steps = Steps(job)
        play(history, steps, job)
        steps.rescale(3)
