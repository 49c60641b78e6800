"""A run that is taken for dead goes on while somebody tidies up: what is left is a whole savepoint or none."""

import pytest

from penstock.checkpoint.local_store import LocalStore
from penstock.checkpoint.manifest_log import FORMAT_VERSION, Manifest
from penstock.checkpoint.stores import checksum_of, open_store
from penstock.client import savepoints
from penstock.client.savepoints import remove_unfinished
from penstock.core.errors import StorageError
from penstock.core.snapshot import Committable, FileRef
from penstock.snapshots.access.opening import Snapshot, publish, reserve
from penstock.snapshots.rewrite.repartition import ReservedFolder, write_manifest
from penstock.task.checkpoint.savepoint_copy import SavepointWriter

RUN = "backfill-x"


class KilledError(Exception):
    """The process ends here."""


class Watched:
    """A store; `at` has what happens before the calls of those numbers."""

    def __init__(self, store, at):
        self._store, self._at = store, dict(at)
        self.calls = 0

    def __getattr__(self, name):
        found = getattr(self._store, name)
        if not callable(found):
            return found

        def call(*given):
            happens = self._at.pop(self.calls, None)
            self.calls += 1
            if happens is not None:
                happens()
            return found(*given)

        return call


class Scene:
    """A run that has written its files, and whose manifest is next."""

    def __init__(self, folder):
        self.uri = f"file://{folder}"
        self.store = LocalStore(f"{folder}/att-1")
        reserve(self.store, RUN)
        refs = []
        for key in ("pending/chunk-0.arrow", "totals/rows/part-0.parquet", "z.arrow"):
            self.store.put(key, b"data")
            refs.append(FileRef(path=key, length=4, checksum=checksum_of(b"data")))
        output = Committable(
            id="o", uid="out", run_id="r", subtask=0, checkpoint_id=1, files=tuple(refs), rows=1, size_bytes=4
        )
        self.manifest = Manifest(
            version=FORMAT_VERSION, kind="savepoint", sequence=1, job_id="j", job_name="a", run_id="r", generation=1,
            nonce="n", created_ms=1, pending=(output,),
        )  # fmt: skip
        self.files = {ref.path for ref in refs}
        self.refused = False

    def finish(self, at=()):
        store = Watched(self.store, at)
        writer = SavepointWriter(store, store)
        try:
            publish(store, RUN, lambda: writer.manifest(self.manifest))
        except StorageError:
            self.refused = True
        return store.calls

    def require_whole_or_none(self):
        left = set(self.store.list(""))
        assert "manifest.json" not in left or self.files <= left


@pytest.mark.parametrize("moment", range(7))
def test_a_run_that_finishes_while_its_folder_is_removed(tmp_path, monkeypatch, moment):
    """Moments: before the folder is listed, before the reservation goes, and then."""
    scene = Scene(tmp_path)
    ended = []
    at = {moment: lambda: ended.append(scene.finish())}
    monkeypatch.setattr(savepoints, "open_store", lambda uri: Watched(open_store(uri), at))
    found = remove_unfinished(scene.uri, "att-")
    assert len(ended) == 1
    assert scene.refused == (moment > 1)
    assert found == ([f"{scene.uri}/att-1"] if moment == 0 else [])
    assert ("manifest.json" in scene.store.list("")) == bool(found)
    scene.require_whole_or_none()


@pytest.mark.parametrize("moment", range(4))
def test_a_folder_is_removed_while_its_run_finishes(tmp_path, moment):
    """Moments: before it is asked whose the place is, before the manifest, behind it, before the reservation goes."""
    scene = Scene(tmp_path)
    found = []
    assert scene.finish({moment: lambda: found.extend(remove_unfinished(scene.uri, "att-"))}) > moment
    assert bool(found) == (moment > 1)
    assert scene.refused == (moment < 2)
    scene.require_whole_or_none()
    assert ("manifest.json" in scene.store.list("")) == bool(found)


def test_a_manifest_that_is_written_behind_the_removal_by_a_run_that_is_killed_then_is_no_savepoint(tmp_path):
    scene = Scene(tmp_path)

    def killed():
        raise KilledError

    with pytest.raises(KilledError):
        scene.finish({1: lambda: remove_unfinished(scene.uri, "att-"), 2: killed})
    assert scene.store.list("") == ["manifest.json"]
    assert remove_unfinished(scene.uri, "att-") == []
    assert scene.store.list("") == []


def test_all_files_are_copied_before_it_is_asked_whose_the_place_is(tmp_path):
    scene = Scene(tmp_path / "from")
    reserve(LocalStore(f"{tmp_path}/to/att-1"), RUN)

    class Source(LocalStore):
        def read(self, key, offset=0, length=None):
            remove_unfinished(f"{tmp_path}/to", "att-")
            return super().read(key, offset, length)

    class Target(LocalStore):
        def put_if_absent(self, key, data):
            raise AssertionError(f"{key} is written")

    snapshot = Snapshot("", Source(scene.store.uri), scene.manifest)
    with pytest.raises(StorageError, match="it now belongs to no run"):
        write_manifest(snapshot, ReservedFolder(Target(f"{tmp_path}/to/att-1"), RUN), {}, 8)
