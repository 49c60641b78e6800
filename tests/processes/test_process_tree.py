"""Nothing outlives a killed supervisor or template."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes
HERE = Path(__file__).parent


@pytest.fixture
def tree(tmp_path):
    process = subprocess.Popen(
        [sys.executable, str(HERE / "driver.py"), str(HERE), str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    line = process.stdout.readline()
    assert line, "the driver did not start"
    yield process, json.loads(line)
    if process.poll() is None:
        process.kill()
    process.wait()
    process.stdout.close()


def test_nothing_outlives_a_killed_supervisor_not_even_a_worker_in_a_c_call(tree, gone):
    process, pids = tree
    process.send_signal(signal.SIGKILL)
    process.wait()
    gone(pids["workers"] + pids["templates"])


def test_no_worker_outlives_a_killed_template(tree, gone):
    _, pids = tree
    os.kill(pids["templates"][0], signal.SIGKILL)
    gone(pids["workers"])


def test_workers_of_a_stopped_supervisor_die_by_their_lease(tree, gone):
    process, pids = tree
    process.send_signal(signal.SIGSTOP)
    try:
        gone(pids["workers"])
    finally:
        process.send_signal(signal.SIGCONT)
