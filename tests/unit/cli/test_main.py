"""The entry point: bad usage, errors of a user and interruptions become one line and an exit code."""

import os
import subprocess
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


@pytest.mark.parametrize("modules", ["penstock.cli.processes, penstock.taskmanager.main", "penstock.rest.server"])
def test_control_processes_load_nothing_of_the_data_path(modules):
    script = f"import penstock.cli.main, {modules}, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"pyarrow", "polars", "numba", "numpy", "confluent_kafka", "httpx"}


@pytest.mark.parametrize(("module", "code"), [("penstock.cli.main", 2), ("penstock.cli.serve", 1)])
def test_a_starter_that_stands_behind_another_process_is_told(tmp_path, module, code):
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\n{sys.executable} "$@"\nexit $?\n')
    wrapper.chmod(0o755)
    environment = {**os.environ, "PENSTOCK_DIE_WITH_PARENT": str(os.getpid())}
    done = subprocess.run(
        [str(wrapper), "-m", module, "jobmanager", "--host", "nowhere"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == code
    assert done.stderr.startswith("penstock: ")
    assert "has to `exec` it" in done.stderr
    assert done.stderr.count("\n") == 1
