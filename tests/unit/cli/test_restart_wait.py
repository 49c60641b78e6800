"""Commands wait for a JobManager that its local cluster starts again, and for no other one."""

import json
import os

import pytest

from penstock.cli.options import beside_cluster
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
    assert wait(0)
    while wait(1):
        assert clock.monotonic_ms() < 11_000
    assert clock.monotonic_ms() >= 10_000
    assert capsys.readouterr().err == (
        f"the JobManager at {URL} does not run; its cluster (pid {os.getpid()}) starts it again, and the jobs"
        " resume from their newest checkpoints; trying for 10 s\n"
    )


def test_the_jobmanager_of_another_or_an_ended_cluster_is_not_waited_for(record, tmp_path, capsys):
    assert not RestartWait("http://127.0.0.1:9", record())(0)
    assert not RestartWait(URL, record(pid=NO_PID))(0)
    assert not RestartWait(URL, tmp_path / "none")(0)
    assert capsys.readouterr().err == ""


def test_the_next_request_has_the_whole_time_and_another_outage_is_told_again(record, capsys):
    clock = ManualClock()
    wait = RestartWait(URL, record(), clock)
    while wait(1 if clock.monotonic_ms() else 0):
        pass
    assert wait(0)
    assert wait(1)
    assert capsys.readouterr().err.count("does not run") == 1
    clock.advance(60_000)
    assert wait(0)
    assert capsys.readouterr().err.count("does not run") == 1


def test_a_job_that_runs_embedded_beside_a_cluster_says_so_and_how_to_choose(record, monkeypatch):
    monkeypatch.delenv("PENSTOCK_CLUSTER", raising=False)
    monkeypatch.setenv("PENSTOCK_HOME", str(record().parent))
    assert beside_cluster() == (
        f"runs in separate processes, not on the cluster at {URL}; --detached or --cluster {URL} runs it there"
    )
    record(pid=NO_PID)
    assert beside_cluster() == ""
    monkeypatch.setenv("PENSTOCK_CLUSTER", "http://elsewhere:1")
    assert "not on the cluster at http://elsewhere:1;" in beside_cluster()
