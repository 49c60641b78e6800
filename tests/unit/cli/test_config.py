"""`penstock config show`: values with their origins."""

import json
import sys

import pytest

from penstock.cli import main


@pytest.fixture
def show(monkeypatch, tmp_path, capsys):
    """Run the command in a folder with a configuration file; return its exit code, output and error."""
    (tmp_path / "penstock.toml").write_text("[taskmanager]\nslots = 3\n[jobmanager]\nworker_lease = '3s'\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK__TASKMANAGER__MEMORY", "8GB")

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["penstock", "config", "show", *arguments])
        with pytest.raises(SystemExit) as ended:
            main.app()
        return (ended.value.code, *capsys.readouterr())

    return run


def test_every_setting_has_its_value_and_origin(show, tmp_path):
    code, shown, _ = show("--json")
    entries = {entry["name"]: (entry["value"], entry["origin"]) for entry in json.loads(shown)}
    file = str(tmp_path / "penstock.toml")
    assert code == 0
    assert entries["taskmanager.slots"] == (3, file)
    assert entries["taskmanager.memory_bytes"] == (8 << 30, "$PENSTOCK__TASKMANAGER__MEMORY")
    assert entries["jobmanager.worker_lease_ms"] == (3_000, file)
    assert entries["jobmanager.heartbeat_timeout_ms"] == (5_000, "default")


def test_a_section_and_what_is_changed(show, tmp_path):
    file = str(tmp_path / "penstock.toml")
    _, shown, _ = show("taskmanager", "--changed")
    assert [line.split() for line in shown.splitlines()] == [
        ["configuration", "file:", file],
        ["taskmanager.slots", "3", file],
        ["taskmanager.memory_bytes", str(8 << 30), "$PENSTOCK__TASKMANAGER__MEMORY"],
    ]


def test_an_unknown_section_is_refused_with_the_nearest(show):
    code, _, said = show("taskmanagers")
    assert (code, "did you mean 'taskmanager'?" in said) == (2, True)
