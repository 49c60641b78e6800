"""Retention of savepoints, against a naive model; and what a folder holds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.checkpoint.manifest_log import FORMAT_VERSION, Manifest, encode_manifest
from penstock.client.savepoints import Retention, Savepoint, dispose, list_savepoints, remove_unfinished
from penstock.core.clock import ManualClock
from penstock.core.errors import PenstockError, SavepointInUseError, UsageError
from penstock.jobmanager.messages.views import OperationStatus
from penstock.rest.flink.documents import savepoint_status

NOW_MS = 1_000_000
SAVEPOINTS = st.lists(
    st.builds(
        Savepoint,
        uri=st.uuids().map(str),
        job_id=st.just("j"),
        job_name=st.sampled_from("ab"),
        created_ms=st.integers(0, NOW_MS),
    ),
    unique_by=lambda s: s.uri,
    max_size=12,
)


@given(SAVEPOINTS, st.integers(1, 5), st.integers(0, NOW_MS))
def test_exactly_the_newest_and_the_young_stay(savepoints, keep, keep_ms):
    gone = {s.uri for s in Retention(keep, keep_ms).expired(savepoints, NOW_MS)}
    for savepoint in savepoints:
        of_job = [s for s in savepoints if s.job_name == savepoint.job_name]
        newer = sum((s.created_ms, s.uri) > (savepoint.created_ms, savepoint.uri) for s in of_job)
        assert (savepoint.uri in gone) == (newer >= keep and NOW_MS - savepoint.created_ms > keep_ms)


def test_a_week_of_savepoints():
    """Every six hours for a week, five kept and all of the last two days: exact after each of them."""
    hour = 3_600_000
    kept = []
    for number in range(28):
        now_ms = number * 6 * hour
        kept.append(Savepoint(f"s{number}", "j", "a", now_ms))
        gone = Retention(5, 48 * hour).expired(kept, now_ms)
        kept = [s for s in kept if s not in gone]
        assert [s.uri for s in kept] == [f"s{n}" for n in range(max(0, number - 8), number + 1)]


@pytest.mark.parametrize(("keep", "keep_ms"), [(0, 0), (-1, 5), (1, -1)])
def test_nothing_to_keep_is_a_mistake(keep, keep_ms):
    with pytest.raises(UsageError, match="keep must be at least 1"):
        Retention(keep, keep_ms)


def complete(folder, created_ms=1):
    manifest = Manifest(
        version=FORMAT_VERSION, kind="savepoint", sequence=1, job_id="j", job_name="a", run_id="r", generation=1,
        nonce="n", created_ms=created_ms,
    )  # fmt: skip
    folder.mkdir()
    (folder / "manifest.json").write_bytes(encode_manifest(manifest))


def test_only_complete_savepoints_are_listed_newest_first(tmp_path):
    for name, created_ms in (("s1", 5), ("s2", 9)):
        complete(tmp_path / name, created_ms)
    (tmp_path / "half" / "uid").mkdir(parents=True)
    (tmp_path / "half" / "uid" / "part.parquet").write_bytes(b"")
    found = list_savepoints(str(tmp_path))
    assert [(s.uri.rpartition("/")[2], s.created_ms, s.job_name) for s in found] == [("s2", 9, "a"), ("s1", 5, "a")]
    assert list_savepoints(str(tmp_path / "none")) == []


class Refusing:
    """A cluster whose disposal ends in an error."""

    def __init__(self, error):
        self.status = OperationStatus(
            request_id="r", job_id="", status="FAILED", error=str(error), error_class=type(error).__name__
        )

    def dispose_savepoint(self, uri):
        return "r"

    def disposal_status(self, request_id):
        return savepoint_status(self.status)


@pytest.mark.parametrize("error", [SavepointInUseError("a job reads"), PenstockError("no rights"), UsageError("none")])
def test_only_what_a_job_reads_from_is_told_as_in_use(error):
    with pytest.raises(PenstockError, match=str(error)) as told:
        dispose(Refusing(error), "s", ManualClock(), 1000)
    assert isinstance(told.value, SavepointInUseError) == isinstance(error, SavepointInUseError)


def test_only_unfinished_folders_of_that_name_are_removed(tmp_path):
    complete(tmp_path / "a-1")
    kept = ["a-1/deep/er.parquet", "ab-1/half", "b/half", "a"]
    for name in [*kept, "a-2/half", "a-3/deep/manifest.json", "a-3/other"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert remove_unfinished(str(tmp_path), "a-") == [f"file://{tmp_path}/a-1"]
    left = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file())
    assert left == sorted([*kept, "a-1/manifest.json"])
    assert remove_unfinished(str(tmp_path / "nothing"), "a-") == []
