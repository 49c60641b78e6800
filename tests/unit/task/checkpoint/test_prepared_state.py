"""State that is loaded before its subtask starts."""

from types import SimpleNamespace

import pytest

from penstock.core.clock import ManualClock
from penstock.core.errors import StateMismatchError
from penstock.operators.operator import NO_CAPABILITIES
from penstock.task.checkpoint import prepared_state, restore
from penstock.task.checkpoint.prepared_state import Pauses, PreparedState


@pytest.mark.parametrize("advances", [True, False])
def test_state_to_which_no_later_checkpoint_can_be_added_is_refused_at_once(advances, monkeypatch):
    store, opened = SimpleNamespace(advances=advances), []
    operator = SimpleNamespace(open=opened.append, close=lambda: None)
    pair = SimpleNamespace(spec=SimpleNamespace(uid="totals"), operator=operator), SimpleNamespace(keyed_state=store)
    monkeypatch.setattr(prepared_state, "keyed_contexts", lambda *_: [pair])
    services = SimpleNamespace(managed_memory_bytes=1000, read_file=None, state_files=SimpleNamespace(read=None))
    deployment = SimpleNamespace(operators=())
    state = PreparedState(deployment, SimpleNamespace(clock=ManualClock()), services)
    if advances:
        state.load(deployment)
    else:
        with pytest.raises(StateMismatchError, match="state of 'totals' has a migration function"):
            state.load(deployment)
    assert opened == [pair[1]]


def test_expired_state_is_removed_when_all_operators_are_open(monkeypatch):
    done = []
    store = SimpleNamespace(finish_restore=lambda _: done.append("removed"))
    chain = SimpleNamespace(links=[SimpleNamespace(capabilities=NO_CAPABILITIES)], open=lambda _: done.append("opened"))
    monkeypatch.setattr(restore, "_contexts", lambda *_: [SimpleNamespace(keyed_state=store)])
    assert restore.open_chain(chain, SimpleNamespace(restored_checkpoint=None), None, None) == (store,)
    assert done == ["opened", "removed"]


def test_a_pause_is_three_times_as_long_as_the_work_before_it():
    clock = ManualClock()
    pause = Pauses(clock)
    for work_ms, expected in ((10, 30), (0, 0), (20, 60), (10_000, 5_000)):
        clock.advance(work_ms)
        before = clock.monotonic_ms()
        pause()
        assert clock.monotonic_ms() - before == expected


def test_the_pauses_of_a_round_come_to_an_end():
    """Else a round could take longer than the job needs to write what it loads."""
    clock = ManualClock()
    pause, begun = Pauses(clock), clock.monotonic_ms()
    for _ in range(100):
        clock.advance(1_000)
        pause()
    assert clock.monotonic_ms() - begun == 100_000 + 60_000


def test_pauses_are_made_while_the_job_runs_but_not_after_its_stop(monkeypatch):
    pauses = []

    def advance(_, pause):
        pauses.append(type(pause))
        return True

    store = SimpleNamespace(advances=True, advance=advance)
    operator = SimpleNamespace(open=lambda _: None, close=lambda: None)
    link = SimpleNamespace(spec=SimpleNamespace(uid="totals"), operator=operator)

    def contexts(_, deployment, *services):
        taken = services[-1].take("totals", ())
        return [(link, SimpleNamespace(keyed_state=taken or store))]

    monkeypatch.setattr(prepared_state, "keyed_contexts", contexts)
    services = SimpleNamespace(managed_memory_bytes=1000, read_file=None, state_files=SimpleNamespace(read=None))
    deployment = SimpleNamespace(operators=())
    state = PreparedState(deployment, SimpleNamespace(clock=ManualClock()), services)
    for _ in range(2):
        state.load(deployment)
    assert state.take("totals", ()) is store
    assert pauses == [Pauses, type(prepared_state.no_pause)]
