"""Sessions, and windows that keep their rows, in the object store: as their models, whatever is here of their state.

The histories of `test_sessions_model` and `test_window_rows_model`, with pieces and timers that are fetched when they
are asked for or by the background, and dropped again.
"""

import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.property import test_sessions_model as sessions
from tests.property import test_window_rows_model as rows
from tests.property.process_job import REMOTE, keys_are_remote
from tests.property.small_pieces import Fetching
from tests.support import sizes as state_sizes
from tests.support.depth import examples

from penstock.core.elements import Barrier


class Sessions(sessions.Job, Fetching):
    """Sessions, some of them fetched by the background."""

    def restart(self, parallelism):
        self.fetching = []
        super().restart(parallelism)


class Rows(rows.Job, Fetching):
    """Windows by rows, likewise."""

    def restart(self, parallelism):
        self.fetching = []
        super().restart(parallelism)

    def lose(self):
        """A checkpoint whose uploads fail: what it froze waits for the next one."""
        self.checkpoint += 1
        for operator, _ in self.subtasks:
            for frozen in operator.snapshot(Barrier(self.checkpoint), rows.Out()).keyed:
                frozen.failed()

    def compact(self):
        for _, store in self.subtasks:
            job = store.compaction()
            if job is not None:
                store.compacted(job, self.write(job.run(self.read)))


@pytest.fixture(params=REMOTE)
def remote(request, monkeypatch):
    """Keys are fetched when they are touched or due; no more than two come in together."""
    state_sizes.given(monkeypatch, incoming_keys=2, evicted_sessions=2, dead_keys=1, many_changes=20)
    with keys_are_remote(monkeypatch, *request.param):
        yield


FETCHES = st.tuples(st.sampled_from(["begin_fetch", "end_fetch"]))
LOSSES = st.tuples(st.sampled_from(["lose", "compact"]))


def mixed(operations, *more):
    """Histories with other steps between."""
    return st.lists(st.one_of(operations, operations, operations, *more), max_size=6).map(
        lambda parts: [step for part in parts for step in ([part] if isinstance(part, tuple) else part)]
    )


#: Some state is restored before anything else.
RESTORED_SESSIONS = [
    *[("batch", 1, 40), ("watermark", 0, 150), ("freeze",), ("finish", "done")],
    *[("batch", 2, 40), ("freeze",), ("finish", "done"), ("restart", 2)],
]
RESTORED_ROWS = [("batch", 1, 30), ("watermark", 0, 100), ("save",), ("batch", 2, 30), ("save",), ("restart", 2)]


@pytest.mark.usefixtures("remote")
@pytest.mark.parametrize("lateness", [0, 40])
@examples(12)
@given(operations=mixed(sessions.OPERATIONS, FETCHES), gap=st.sampled_from([7, 30, 100]))
def test_sessions_are_the_models_when_state_stays_in_the_object_store(gap, lateness, operations):
    with tempfile.TemporaryDirectory() as folder:
        job = Sessions(folder, gap, lateness)
        sessions.run(job, [*RESTORED_SESSIONS, *operations])


@pytest.mark.usefixtures("remote")
@examples(12)
@given(
    window=st.sampled_from(["tumbling", "sliding", "session", "global"]),
    rule=rows.RULES,
    operations=mixed(rows.OPERATIONS, FETCHES, LOSSES),
    lateness=st.sampled_from([0, 60]),
)
def test_windows_by_rows_are_the_models_when_state_stays_in_the_object_store(window, rule, operations, lateness):
    with tempfile.TemporaryDirectory() as folder:
        rows.run(Rows(folder, window, rows.rule_of(window, rule), lateness), [*RESTORED_ROWS, *operations])
