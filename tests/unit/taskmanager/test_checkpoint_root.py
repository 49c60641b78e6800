"""A worker finds out at its deployment that it cannot write the job's checkpoints."""

import pytest

from penstock.core.errors import StorageError
from penstock.taskmanager.checkpoint_root import require_writable


def test_a_folder_that_can_be_written_stays_as_it_was(tmp_path):
    require_writable(str(tmp_path / "job"), "w", "tm-1")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_one_that_cannot_is_named_with_the_taskmanager_and_the_remedy(tmp_path):
    (tmp_path / "data").touch()  # root may write everywhere, but not below a file
    with pytest.raises(StorageError) as caught:
        require_writable(f"file://{tmp_path}", "w", "tm-1")
    assert caught.value.message.startswith("TaskManager tm-1 (host ")
    assert f"cannot write the job's checkpoints in file://{tmp_path}: " in caught.value.message
    assert "probe" not in caught.value.message
    assert "give that user write access" in caught.value.hint


def test_an_object_store_is_not_tested():
    require_writable("memory://nowhere/job", "w", "tm-1")
