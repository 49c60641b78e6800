"""State that is loaded before its subtask starts."""

from types import SimpleNamespace

import pytest

from penstock.core.errors import StateMismatchError
from penstock.operators.operator import NO_CAPABILITIES
from penstock.task.checkpoint import prepared_state, restore
from penstock.task.checkpoint.prepared_state import PreparedState


@pytest.mark.parametrize("advances", [True, False])
def test_state_to_which_no_later_checkpoint_can_be_added_is_refused_at_once(advances, monkeypatch):
    store, opened = SimpleNamespace(advances=advances), []
    operator = SimpleNamespace(open=opened.append, close=lambda: None)
    pair = SimpleNamespace(spec=SimpleNamespace(uid="totals"), operator=operator), SimpleNamespace(keyed_state=store)
    monkeypatch.setattr(prepared_state, "keyed_contexts", lambda *_: [pair])
    services = SimpleNamespace(managed_memory_bytes=1000, read_file=None, state_files=SimpleNamespace(read=None))
    deployment = SimpleNamespace(operators=())
    state = PreparedState(deployment, None, services)
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
