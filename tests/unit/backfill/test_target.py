"""Of two backfills to one target one is refused, and neither touches what the other has written."""

import pytest
from tests.spark.golden import Golden

from penstock.backfill.engine import LocalEngine
from penstock.backfill.run import Backfill, BackfillOptions, remove_unreferenced
from penstock.checkpoint.stores import open_store
from penstock.core.clock import SystemClock
from penstock.core.errors import StorageError, UsageError
from penstock.core.rand import SystemRand
from penstock.snapshots.access.opening import RESERVATION


def planned(golden, monkeypatch):
    options = BackfillOptions(target=str(golden.folder / "savepoint"), until=golden.until((50, 50, 50)), parts=2)
    return Backfill(golden.graph(monkeypatch), options, SystemClock(), SystemRand())


def run(work):
    return work.run(LocalEngine(), lambda *_: None)


def contents(store):
    return {key: store.read(key) for key in store.list("")}


def test_a_second_backfill_is_refused_and_the_first_one_s_savepoint_stays_as_it_was(tmp_path, monkeypatch):
    golden = Golden("windows", tmp_path, rows=300)
    first, second = planned(golden, monkeypatch), planned(golden, monkeypatch)
    made = run(first)
    store = open_store(made.uri)
    store.put("claimed.json", b"{}")
    before = contents(store)
    assert "manifest.json" in before
    with pytest.raises(UsageError, match="no longer empty"):
        run(second)
    assert contents(store) == before


def test_a_second_backfill_is_refused_while_the_first_one_writes(tmp_path, monkeypatch):
    golden = Golden("windows", tmp_path, rows=300)
    store = open_store(str(tmp_path / "savepoint"))
    work = planned(golden, monkeypatch)
    store.put(RESERVATION, b"backfill-other")
    with pytest.raises(UsageError, match=r"another run is writing to .*backfill-other"):
        run(work)
    assert contents(store) == {RESERVATION: b"backfill-other"}


def test_one_whose_files_were_removed_leaves_no_savepoint(tmp_path, monkeypatch):
    golden = Golden("windows", tmp_path, rows=300)
    store = open_store(str(tmp_path / "savepoint"))

    def tidied_up(stage, done, tasks):
        for key in store.list(""):
            store.delete(key)

    with pytest.raises(StorageError, match="it now belongs to no run"):
        planned(golden, monkeypatch).run(LocalEngine(), tidied_up)
    assert "manifest.json" not in store.list("")


def test_only_files_of_the_own_run_are_removed(tmp_path):
    store = open_store(str(tmp_path))
    others = [
        "manifest.json",
        "claimed.json",
        "pending/backfill-b-1-out-00000.arrow",
        "op/part-backfill-b-1-00000.parquet",
    ]
    for key in [*others, "pending/backfill-a-1-out-00000.arrow", "op/part-backfill-a-1-00000.parquet"]:
        store.put(key, b"x")
    remove_unreferenced(store, "backfill-a", ())
    assert sorted(store.list("")) == sorted(others)
