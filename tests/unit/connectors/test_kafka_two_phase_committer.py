"""Ending prepared transactions: what the coordinator refuses is decided by the marker, before anything moves it."""

from __future__ import annotations

import pytest

from penstock.core.clock import ManualClock
from penstock.core.errors import LostTransactionError
from penstock.core.permits import CommitPermit
from penstock.core.snapshot import Committable

pytest.importorskip("kafka")

from penstock_connectors.kafka.write.transactions import NotEndableError, marker_of
from penstock_connectors.kafka.write.two_phase_committer import MARKER_READS, TransactionCommitter

PERMIT = CommitPermit(job_id="j", run_id="r", generation=1, checkpoint_id=5, manifest_sequence=9)
GROUP = "job.out.r.0"


class Coordinator:
    """Transactions by producer id: `open`, `committed` or `aborted`; the group's marker moves with each commit."""

    def __init__(self, states: dict[int, str], marker: int = -1) -> None:
        self.states, self.marker = states, marker
        self.unstable_reads = 0

    def commit(self, transaction):
        if self.states[transaction.producer_id] != "open":
            raise NotEndableError("refused")
        self.states[transaction.producer_id] = "committed"
        self.marker = marker_of(transaction.producer_id, 0)

    def markers(self, groups, *, stable=True):
        self.unstable_reads += not stable
        assert not stable or "open" not in self.states.values(), "a stable read waits for what is open"
        return dict.fromkeys(groups, self.marker)

    def ids_under(self, prefixes):
        return [f"{GROUP}.{n}" for n in self.states] if prefixes else []

    def fence(self, ids):
        for number, state in self.states.items():
            if f"{GROUP}.{number}" in ids and state == "open":
                self.states[number] = "aborted"


def output(checkpoint_id: int) -> Committable:
    return Committable(
        id=f"out/r/0/{checkpoint_id}", uid="out", run_id="r", subtask=0, checkpoint_id=checkpoint_id, rows=3,
        transactional_id=f"{GROUP}.{checkpoint_id}", marker_group=GROUP,
        detail={"producer_id": checkpoint_id, "producer_epoch": 0},
    )  # fmt: skip


@pytest.fixture
def committer_of(monkeypatch):
    def make(coordinator: Coordinator) -> TransactionCommitter:
        config = {"bootstrap": "nowhere:1", "properties": {}, "topic": "totals"}
        committer = TransactionCommitter(config, ManualClock(0))
        monkeypatch.setattr(committer, "_connect", lambda: coordinator)
        return committer

    return make


@pytest.mark.parametrize("call", ["commit", "recover"])
def test_a_lost_transaction_is_not_hidden_by_the_marker_of_a_later_one(committer_of, call):
    coordinator = Coordinator({4: "aborted", 5: "open"}, marker=marker_of(3, 0))
    committer = committer_of(coordinator)
    owed = (output(4), output(5))
    arguments = (PERMIT, owed) if call == "commit" else (PERMIT, ("job.out.r.",), owed)
    with pytest.raises(LostTransactionError, match=r"3 records of checkpoint 4 .*the marker job\.out\.r\.0 is at"):
        getattr(committer, call)(*arguments, lambda _ref: b"")
    assert coordinator.states[5] == "committed"  # no more is lost than must be
    assert coordinator.unstable_reads == MARKER_READS


def test_what_was_committed_before_is_told_by_the_marker(committer_of):
    coordinator = Coordinator({4: "committed", 5: "open"}, marker=marker_of(4, 0))
    outcomes = committer_of(coordinator).recover(PERMIT, ("job.out.r.",), (output(4), output(5)), lambda _ref: b"")
    assert [outcome.resolution for outcome in outcomes] == ["already-published", "published"]


def test_the_last_one_is_judged_when_nothing_is_open(committer_of):
    coordinator = Coordinator({4: "open", 5: "aborted"}, marker=marker_of(3, 0))
    with pytest.raises(LostTransactionError, match="checkpoint 5"):
        committer_of(coordinator).recover(PERMIT, ("job.out.r.",), (output(4), output(5)), lambda _ref: b"")
    assert coordinator.unstable_reads == 0
