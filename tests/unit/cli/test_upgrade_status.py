"""`penstock upgrade JOB --status`: which version, since when, how it ended and why."""

import contextlib

import pytest

from penstock.cli.running import upgrade as module
from penstock.core.clock import ManualClock

AT = 1_767_607_200_000  # 2026-01-05 10:00:00
VIEW = {
    "phase": "completed", "file": "new.py", "begun": AT, "ended": AT + 61_000, "savepoint": "file:///sp", "reason": "",
    "checkpoints": {"completed": 1, "wanted": 3}, "restarts": {"seen": 0, "allowed": 0}, "held": {"rows": 5},
    "confirm": False, "deadline": AT + 90_000, "parallelism": {},
}  # fmt: skip


@pytest.fixture
def told(monkeypatch, capsys):
    """Return the output of `upgrade --status` for a view that differs from `VIEW`, and a job in a state."""

    def lines(state="RUNNING", **changes):
        client = type("Client", (), {
            "jobs": lambda _: [{"jid": "a" * 32, "name": "live", "state": state, "start-time": 1}],
            "newest_upgrade": lambda _, job_id: {**VIEW, **changes},
        })()  # fmt: skip
        monkeypatch.setattr(module, "connect", lambda _: contextlib.nullcontext(client))
        monkeypatch.setattr(module, "SystemClock", lambda: ManualClock(AT + 30_000))
        module.upgrade("live", status=True)
        return capsys.readouterr().out.splitlines()

    return lines


def test_an_upgrade_that_completed(told):
    assert told() == [
        "upgrade completed",
        "  new version: new.py",
        "  requested at 2026-01-05 10:00:00, ended at 2026-01-05 10:01:01",
        "  savepoint of the old version: file:///sp",
    ]


def test_one_that_was_rolled_back_has_its_reason(told):
    lines = told(phase="rolled-back", reason="the old version is running again: it failed once", file="", savepoint="")
    assert lines == [
        "upgrade rolled back: the old version is running again: it failed once",
        "  requested at 2026-01-05 10:00:00, ended at 2026-01-05 10:01:01",
    ]


def test_one_on_trial(told):
    assert told(phase="trial", ended=None) == [
        "trial of the new version: checkpoint 1 of 3, restarts: 0 (none is allowed), 5 output rows withheld, 60 s left",
        "  new version: new.py",
        "  requested at 2026-01-05 10:00:00",
        "  savepoint of the old version: file:///sp",
    ]


def test_one_whose_job_has_ended(told):
    assert told("CANCELED", phase="trial", ended=None)[0] == "the upgrade has no outcome: the job is CANCELED"


def test_one_that_an_older_version_recorded(told):
    assert told(begun=None, ended=None, file="", savepoint="") == ["upgrade completed"]


def test_the_progress_of_one_that_fails_leaves_the_reason_to_the_error(capsys):
    summary = {"slow-calls": [], "open-requests": [], "sources-unreachable": {}}
    client = type("Client", (), {"summary": lambda *_: summary})()
    progress = module._Progress(type("Job", (), {"client": client, "job_id": "a" * 32})())
    progress.show({**VIEW, "phase": "rolled-back", "reason": "the old version is running again: it failed once"})
    progress.show({**VIEW, "phase": "rolled-back", "reason": "the old version is running again: it failed once"})
    assert capsys.readouterr().out == "upgrade rolled back\n"
