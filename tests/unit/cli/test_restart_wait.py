"""Commands wait for a JobManager that its local cluster starts again, and for no other one."""

import json
import os

import pytest

from penstock.cli.restart_wait import RestartWait
from penstock.core.clock import ManualClock

URL = "http://127.0.0.1:8081"
NO_PID = 1 << 30


@pytest.fixture
def record(tmp_path):
    def write(**changes):
        path = tmp_path / "cluster.json"
        path.write_text(json.dumps({"rest": URL, "pid": os.getpid(), **changes}))
        return path

    return write


def test_a_command_tries_again_for_ten_seconds_and_says_so_once(record, capsys):
    clock = ManualClock()
    wait = RestartWait(URL + "/", record(), clock)
    assert wait()
    while wait():
        assert clock.monotonic_ms() < 11_000
    assert clock.monotonic_ms() >= 10_000
    assert capsys.readouterr().err == (
        f"the JobManager at {URL} does not run; its cluster (pid {os.getpid()}) starts it again, and the jobs"
        " resume from their newest checkpoints; trying for 10 s\n"
    )


def test_the_jobmanager_of_another_or_an_ended_cluster_is_not_waited_for(record, tmp_path, capsys):
    assert not RestartWait("http://127.0.0.1:9", record())()
    assert not RestartWait(URL, record(pid=NO_PID))()
    assert not RestartWait(URL, tmp_path / "none")()
    assert capsys.readouterr().err == ""
