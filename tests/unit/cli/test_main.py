"""The entry point: bad usage, errors of a user and interruptions become one line and an exit code."""

import sys

import pytest

from penstock.cli import main


def run(*arguments, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["penstock", *arguments])
    with pytest.raises(SystemExit) as ended:
        main.app()
    return ended.value.code


@pytest.mark.parametrize("command", main._COMMANDS)
def test_every_command_explains_itself(command, monkeypatch, capsys):
    assert run(command, "--help", monkeypatch=monkeypatch) == 0
    assert f"penstock {command}" in capsys.readouterr().out


def test_an_unknown_command_is_a_usage_error(monkeypatch, capsys):
    assert run("walk", monkeypatch=monkeypatch) == 2
    assert "No such command 'walk'" in capsys.readouterr().err


def test_a_missing_argument_is_a_usage_error(monkeypatch, capsys):
    assert run("run", monkeypatch=monkeypatch) == 2
    assert "Missing argument 'job.py'" in capsys.readouterr().err


def test_ctrl_c_says_so_and_ends_with_130(monkeypatch, capsys):
    def interrupted(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("penstock.cli.jobs.connect", interrupted)
    assert run("list", monkeypatch=monkeypatch) == 130
    assert capsys.readouterr().err.count("penstock: interrupted") == 1
