"""Running aggregates that change from one version of a job to the next, against a model that knows when each began.

Any order of batches, freezes, compactions, restores, rescales and changes gives the model's rows, or is refused where
the model says so.
"""

import copy
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.property.running_job import KEYS, OPERATIONS, Job
from tests.property.running_models import FUNCTIONS, Running, aggregate
from tests.support.depth import examples

from penstock.core.errors import StateMismatchError

ALL = [("n", "count", None), *((f"{fn}_{c}", fn, c) for c in "vx" for fn in FUNCTIONS), ("min_t", "min", "t")]
_PARTS = {"mean": "sum", "var": "moments", "std": "moments"}


def parts(fn, column):
    """What an aggregate is made of, in a column that may be null; a value of any length is null by itself."""
    if column is None:
        return set()
    if column == "t" or fn in ("var", "std"):
        return {(_PARTS.get(fn, fn), column)}
    return {("count", column)} | ({(_PARTS.get(fn, fn), column)} if fn != "count" else set())


class Versions(Running):
    """Rows of all times; every part of an aggregate counts those since it began."""

    def __init__(self, key, aggregates=ALL):
        super().__init__(key, aggregates)
        self.begun = {part: {} for _, fn, c in aggregates for part in parts(fn, c)}

    def refuses(self, aggregates):
        known = [(parts(fn, c), parts(fn, c) & set(self.begun)) for _, fn, c in aggregates]
        return any(found and found != wanted for wanted, found in known)

    def change(self, aggregates):
        counts = {key: len(rows) for key, rows in self.held.items()}
        wanted = {part for _, fn, c in aggregates for part in parts(fn, c)}
        self.begun = {part: self.begun.get(part, counts) for part in wanted}
        self.aggregates = aggregates
        self.config = Running(self.key, aggregates).config

    def add(self, row):
        key = tuple(row[c] for c in self.key)
        rows = self.held.setdefault(key, [])
        rows.append(row)
        found = {c: row[c] for c in self.key}
        for name, fn, column in self.aggregates:
            first = max((self.begun[part].get(key, 0) for part in parts(fn, column)), default=0)
            found[name] = aggregate(fn, rows[first:], column)
        return [{**found, "__ts": row["__ts"]}]


class ChangingJob(Job):
    """The job, which may go on as another version of itself."""

    wanted = None

    def start(self, parallelism):
        super().start(parallelism) if self.wanted is None else self.go_on(parallelism)

    def go_on(self, parallelism):
        snapshots, model = self.complete
        model = copy.deepcopy(model)
        model.change(self.wanted)
        kept, self.complete = self.complete, (snapshots, model)
        try:
            super().start(parallelism)
        finally:
            self.complete = kept

    def change(self, parallelism, chosen):
        wanted = [ALL[place] for place in sorted(chosen)]
        snapshots, model = self.complete
        if snapshots and model.refuses(wanted):
            held, self.model = self.model, Versions(model.key, wanted)
            with pytest.raises(StateMismatchError):
                self.open(0, 1, snapshots)
            self.model = held
            self.attempt += 1
            self.start(parallelism)
            return
        self.wanted = wanted
        self.start(parallelism)


CHANGES = st.tuples(st.just("change"), st.integers(1, 3), st.sets(st.integers(0, len(ALL) - 1), min_size=1, max_size=8))

BATCHES = st.tuples(st.just("batch"), st.integers(0, 2**31), st.integers(1, 40))
SAVES = st.tuples(st.just("save"))
STEPS = st.one_of(BATCHES, SAVES, CHANGES, BATCHES, SAVES, OPERATIONS.flatmap(st.sampled_from))


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@examples(40)
@given(st.sampled_from(sorted(KEYS)), st.lists(STEPS, min_size=12, max_size=40))
def test_any_history_of_versions_gives_the_rows_of_the_model(backend, kind, operations):
    key, keys = KEYS[kind]
    first = [one for one in ALL if one[0] in ("n", "sum_v", "max_x", "var_x")]
    with tempfile.TemporaryDirectory() as folder:
        job = ChangingJob(folder, Versions(key, first), keys, backend)
        job.holds_values = True
        try:
            for operation, *arguments in operations:
                getattr(job, {"restart": "start"}.get(operation, operation))(*arguments)
        finally:
            job.close()
