"""The log of a job that runs: its retention removes entries between their listing and their reading."""

import pytest

from penstock.checkpoint.manifest_log import key_of
from penstock.core.errors import SnapshotDamagedError
from penstock.snapshots.access.opening import open_snapshot, read_log


class Retained:
    """The job's store, where with every listing another checkpoint is written and the oldest one removed."""

    def __init__(self, job, times=4, listed=()):
        self.job, self.times, self.listed, self.lists = job, times, list(listed), 0
        self.uri, self.read = job.store.uri, job.store.read

    def list(self, prefix):
        self.lists += 1
        found = [*self.job.store.list(prefix), *self.listed]
        if self.times:
            self.times -= 1
            self.job.checkpoint()
            self.job.store.delete(found[0])
        return found


@pytest.mark.parametrize("times", [0, 1, 4])
def test_what_retention_removes_meanwhile_is_left_out(job, times):
    first = [manifest.sequence for manifest in read_log(job.store)]
    store = Retained(job, times)
    newest = first[-1] + times
    assert [m.sequence for m in read_log(store)] == list(range(newest - len(first) + 1, newest + 1))
    assert store.lists == times + 1


def test_the_newest_is_opened_while_others_go(job, monkeypatch):
    store = Retained(job, 2)
    monkeypatch.setattr("penstock.snapshots.access.opening.open_store", lambda _uri: store)
    assert open_snapshot(str(job.folder)).manifest.sequence == job.sequence


def test_one_that_is_listed_and_never_there_is_told(job):
    store = Retained(job, 0, [key_of(77)])
    with pytest.raises(SnapshotDamagedError, match=r"0077\.json disappeared"):
        read_log(store)
    assert store.lists == 10
