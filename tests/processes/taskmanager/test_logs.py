"""Logs of workers and folders of sockets."""

import os
import subprocess
import sys
from pathlib import Path

from penstock.taskmanager import supervisor
from penstock.taskmanager.supervisor import make_socket_dir
from penstock.taskmanager.worker_logs import RETAINED_LOGS, WorkerLogs, tail_of


def test_the_tail_begins_with_a_whole_line(tmp_path):
    path = tmp_path / "log"
    path.write_text("first line\nsecond\nthird\n")
    assert tail_of(path, 15) == "second\nthird\n"
    assert tail_of(path, 1000) == "first line\nsecond\nthird\n"
    assert tail_of(tmp_path / "none", 10) == ""


def test_only_their_user_reads_them(tmp_path):
    """In a process of its own: stdout and stderr go elsewhere from there on."""
    code = (
        "import sys; from penstock.taskmanager.worker_logs import redirect_output as to; to(sys.argv[1]); print('told')"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "log")], check=True, timeout=60)
    assert (tmp_path / "log").read_text() == "told\n"
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_old_logs_are_pruned_but_never_those_of_live_workers(tmp_path):
    logs = WorkerLogs(tmp_path)
    for number in range(RETAINED_LOGS + 5):
        path = logs.path_of(f"w{number}")
        path.write_text("x")
        os.utime(path, (number, number))
    logs.prune({"w0"})
    assert logs.path_of("w0").exists()
    assert not logs.path_of("w1").exists()
    assert len(list(tmp_path.iterdir())) == RETAINED_LOGS + 1


def test_socket_folders_are_short_private_and_swept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / ("long" * 30)))
    folder = make_socket_dir()
    try:
        assert len(str(folder)) < 40
        assert folder.stat().st_mode & 0o077 == 0
    finally:
        folder.rmdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/dev/shm")
    dead = Path("/dev/shm/ps-999999999-gone")
    dead.mkdir(exist_ok=True)
    folder = make_socket_dir()
    try:
        assert not dead.exists()
    finally:
        folder.rmdir()


def test_two_taskmanagers_may_sweep_at_the_same_time(tmp_path, monkeypatch):
    """The first removal stands for that of the other one: it takes every folder away that was listed."""
    dead = [tmp_path / f"ps-99999999{number}-gone" for number in range(3)]
    for folder in dead:
        folder.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    gone = iter(dead)
    monkeypatch.setattr(supervisor.shutil, "rmtree", lambda *_, **__: [folder.rmdir() for folder in gone])
    made = make_socket_dir(most_base_bytes=4096)
    assert list(tmp_path.iterdir()) == [made]
