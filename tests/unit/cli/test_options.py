"""Which job a command means."""

from types import SimpleNamespace

from penstock.cli.options import find_job


def test_a_name_means_the_running_job_before_a_newer_one_that_has_ended():
    jobs = [
        {"jid": "a" * 32, "name": "live", "state": "FINISHED", "start-time": 1},
        {"jid": "b" * 32, "name": "live", "state": "RUNNING", "start-time": 2},
        {"jid": "c" * 32, "name": "live", "state": "FINISHED", "start-time": 3},
    ]
    found = lambda jobs: find_job(SimpleNamespace(jobs=lambda: jobs), "live")["jid"][0]
    assert found(jobs) == "b"
    assert found([jobs[0], jobs[2]]) == "c"
