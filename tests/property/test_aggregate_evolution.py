"""Running aggregates that change from one version of a job to the next, against a model that knows when each began.

Any order of batches, freezes, compactions, restores, rescales and changes gives the model's rows, or is refused where
the model says so.
"""

import pickle

import pytest
from hypothesis import strategies as st
from tests.property.harness.backends import MEMORY, leaving, on
from tests.property.harness.histories import SEEDS, operations, play, step
from tests.property.harness.job import spec_of
from tests.property.running_models import FUNCTIONS, KEYS, STEPS, Running, Steps, aggregate, job_of

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
        key = self.name_of(row)
        rows = self.held.setdefault(key, [])
        rows.append(row)
        found = {c: row[c] for c in self.key}
        for name, fn, column in self.aggregates:
            first = max((self.begun[part].get(key, 0) for part in parts(fn, column)), default=0)
            found[name] = aggregate(fn, rows[first:], column)
        return [{**found, "__ts": row["__ts"]}]


class Changes(Steps):
    """The steps of a job that may go on as another version of itself."""

    wanted = None

    def start(self, parallelism):
        """Go on from the newest complete checkpoint, as the version that is wanted now."""
        kept = self.job.complete
        if self.wanted is not None:
            self.job.amend(lambda model: model.change(self.wanted))
            self.version(self.wanted)
        super().start(parallelism)
        self.job.complete = kept

    def version(self, aggregates):
        self.job.spec = spec_of(Versions.kind, Versions(self.job.model.key, aggregates).config)

    def change(self, parallelism, chosen, fits):
        """Go on with these aggregates, where it `fits` without those that alone would be refused."""
        wanted, before = [ALL[place] for place in sorted(chosen)], self.job.spec
        saved = pickle.loads(self.job.complete.model) if self.job.complete.keyed else None
        if saved is not None and fits:
            wanted = [one for one in wanted if not saved.refuses([one])] or saved.aggregates
        if saved is not None and saved.refuses(wanted):
            self.version(wanted)
            with pytest.raises(StateMismatchError):
                self.job.start(1)
            self.job.spec = before
        else:
            self.wanted = wanted
        self.start(parallelism)


CHOSEN = st.sets(st.integers(0, len(ALL) - 1), min_size=1, max_size=8)
OPERATIONS = operations(
    *STEPS,
    step("checkpoint", times=3),
    step("batch", SEEDS, st.integers(1, 40), times=3),
    step("change", st.integers(1, 3), CHOSEN, st.booleans(), times=4),
    least=12,
    most=40,
)


@on((MEMORY, 50), (leaving(3), 50))
def test_any_history_of_versions_gives_the_rows_of_the_model(backend):
    backend.check(run, kind=st.sampled_from(sorted(KEYS)), history=OPERATIONS)


def run(backend, kind, history):
    key, keys = KEYS[kind]
    first = [one for one in ALL if one[0] in ("n", "sum_v", "max_x", "var_x")]
    with job_of(Versions(key, first), keys, backend) as job:
        play(history, Changes(job), job)
