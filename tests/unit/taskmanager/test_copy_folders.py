"""The folders of local copies: handed on when a worker ends, removed with the job and with the TaskManager."""

import os
import shutil

import pytest

from penstock.core.clock import ManualClock
from penstock.taskmanager.copy_folders import KEPT_MS, CopyFolders


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def folders(tmp_path, clock):
    made = CopyFolders(tmp_path / "copies", clock)
    yield made
    made.close()


def work(folders, worker_id, job_id="job", copies=1):
    """A worker that keeps copies."""
    folder = folders.folder_of(job_id)
    for number in range(copies):
        path = folder / worker_id / "data" / "run" / f"{worker_id}-{number}.pack"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return folder


def left(folder):
    return sorted(path.name for path in folder.rglob("*.pack"))


def test_an_ended_worker_leaves_its_copies_until_the_next_one_of_its_slot_does(folders):
    folder = work(folders, "w1")
    work(folders, "w2")
    folders.worker_ended("job", "w1", 0)
    folders.worker_ended("job", "w2", 1)
    assert sorted(path.name for path in (folder / "ended").iterdir()) == ["w1", "w2"]
    work(folders, "w3", copies=0)
    folders.worker_ended("job", "w3", 0)
    assert left(folder) == ["w1-0.pack", "w2-0.pack"], "w3 had none"
    work(folders, "w4")
    folders.worker_ended("job", "w4", 0)
    assert left(folder) == ["w2-0.pack", "w4-0.pack"]


def test_nothing_is_left_at_the_end_of_a_job(folders):
    folder = work(folders, "w1")
    work(folders, "w2")
    other = work(folders, "w9", job_id="other")
    folders.worker_ended("job", "w1", 0)
    folders.job_ended("job", {"job", "other"})
    folders.worker_ended("job", "w2", 1)
    assert not folder.exists(), "also when a worker ends after the job"
    folders.job_ended("other", ())
    folders.worker_ended("other", "w9", 0)
    assert not other.exists()


def test_copies_of_a_job_whose_end_was_not_reported_expire(folders, clock):
    folder = work(folders, "w1")
    clock.advance(10 * KEPT_MS)
    folders.expire({"job"})
    folders.worker_ended("job", "w1", 0)
    clock.advance(KEPT_MS)
    folders.expire(())
    assert left(folder) == ["w1-0.pack"]
    clock.advance(1)
    folders.expire(())
    assert not folder.exists()


def test_a_taskmanager_removes_its_folder_and_those_of_killed_ones(tmp_path, clock):
    killed = CopyFolders(tmp_path / "copies", clock)
    orphan = work(killed, "w1")
    os.close(killed._lock)  # as the kernel does
    running = CopyFolders(tmp_path / "copies", clock)
    assert not orphan.exists()
    own = work(running, "w2")
    second = CopyFolders(tmp_path / "copies", clock)
    assert left(own) == ["w2-0.pack"], "another TaskManager with the same folder runs"
    second.close()
    running.close()
    assert list((tmp_path / "copies").iterdir()) == []


def test_a_file_in_the_folder_is_left_alone(tmp_path, clock):
    (tmp_path / "copies").mkdir()
    (tmp_path / "copies" / "notes").write_text("mine")
    CopyFolders(tmp_path / "copies", clock).close()
    assert (tmp_path / "copies" / "notes").exists()
    shutil.rmtree(tmp_path / "copies")
