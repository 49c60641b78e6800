"""Each rule of the level is noticed, with the line that broke it."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.support import in_process


def listen(folder):
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))


def start(folder):
    subprocess.run([sys.executable, "-S", "-c", ""], check=True)


def pause(folder):
    time.sleep(0.001)


def pause_a_coroutine(folder):
    asyncio.run(asyncio.sleep(0.001))


def write(folder):
    (folder / "outside").write_text("x")


def make(folder):
    os.mkdir(folder / "new")  # noqa: PTH102 - by its name


def read(folder):
    Path(__file__).read_text()
    os.stat(folder)  # noqa: PTH116 - by its name
    time.sleep(0)


@pytest.mark.parametrize(
    ("deed", "rule"),
    [
        (listen, in_process.CONNECTED),
        (start, in_process.ALONE),
        (pause, in_process.TIMELESS),
        (pause_a_coroutine, in_process.TIMELESS),
        (write, in_process.INSIDE),
        (make, in_process.INSIDE),
        (read, None),
    ],
)
def test_a_rule_that_is_broken_is_told_with_the_line(deed, rule, tmp_path):
    (tmp_path / "inside").mkdir()
    watch = in_process.begin([tmp_path / "inside"])
    try:
        deed(tmp_path)
    finally:
        in_process.end()
    assert {found.partition(":")[0] for found in watch.found} == ({rule} if rule else set())
    if rule:
        assert "tests/unit/support/test_in_process.py:" in watch.found[0]
        with pytest.raises(pytest.fail.Exception, match="not a unit test"):
            in_process.judge(watch)


@pytest.mark.parametrize("earlier", [True, False])
def test_a_thread_counts_when_the_test_has_started_it(tmp_path, earlier):
    go = threading.Event()
    thread = threading.Thread(target=lambda: (go.wait(), time.sleep(0.001)))
    if earlier:
        thread.start()
    watch = in_process.begin([tmp_path])
    try:
        if not earlier:
            thread.start()
        go.set()
        thread.join()
    finally:
        in_process.end()
    assert bool(watch.found) is not earlier
