"""The entry point: bad usage, errors of a user and interruptions become one line and an exit code."""

import sys

import pytest
import typer
from typer.core import TyperGroup

import penstock
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


def test_the_version_is_printed(monkeypatch, capsys):
    assert run("--version", monkeypatch=monkeypatch) == 0
    assert capsys.readouterr().out == f"penstock {penstock.__version__}\n"


@pytest.fixture
def as_a_wheel(monkeypatch):
    """An installation without the benchmarks and test servers."""
    for name in [name for name in sys.modules if name.startswith("penstock_lab")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "penstock_lab", None)


@pytest.mark.usefixtures("as_a_wheel")
def test_a_wheel_says_where_the_benchmarks_are(monkeypatch, capsys):
    assert run("--help", monkeypatch=monkeypatch) == 0
    assert "bench" not in capsys.readouterr().out
    assert run("bench", "w1", monkeypatch=monkeypatch) == 2
    assert "run it in a checkout of the repository" in capsys.readouterr().err


@pytest.mark.usefixtures("as_a_wheel")
def test_the_demo_of_a_wheel_starts_no_servers(monkeypatch, capsys, tmp_path):
    assert run("demo", "--kafka", "--directory", str(tmp_path), monkeypatch=monkeypatch) == 2
    assert "give --bootstrap and --s3-endpoint" in capsys.readouterr().err


def test_a_home_that_cannot_be_written_is_one_line(monkeypatch, capsys, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "file" / "home"))
    assert run("cluster", "start", monkeypatch=monkeypatch) == 2
    told = capsys.readouterr().err
    assert "home: Not a directory (set PENSTOCK_HOME to a writable folder)" in told


def test_an_unknown_command_is_a_usage_error(monkeypatch, capsys):
    assert run("walk", monkeypatch=monkeypatch) == 2
    assert "no such command 'walk' (`penstock --help` lists the commands)" in capsys.readouterr().err
    assert run("shwo", monkeypatch=monkeypatch) == 2
    assert "no such command 'shwo' (did you mean 'show'?)" in capsys.readouterr().err


def test_a_missing_argument_is_a_usage_error(monkeypatch, capsys):
    assert run("run", monkeypatch=monkeypatch) == 2
    said = capsys.readouterr().err
    assert said == "penstock: missing argument 'job.py' (`penstock run --help` explains all)\n"


def test_ctrl_c_says_so_and_ends_with_130(monkeypatch, capsys):
    def interrupted(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("penstock.cli.running.jobs.connect", interrupted)
    assert run("list", monkeypatch=monkeypatch) == 130
    assert capsys.readouterr().err.count("penstock: interrupted") == 1


def commands_of(command, name="penstock"):
    """Return every command by its whole name."""
    if not isinstance(command, TyperGroup):
        return {name: command}
    found = {name: command}
    for below in command.list_commands(None):
        found |= commands_of(command.get_command(None, below), f"{name} {below}")
    return found


def test_help_fits_80_columns_with_every_name_whole():
    for name, command in commands_of(typer.main.get_command(main.commands)).items():
        # a terminal of 80 columns leaves two of them free
        text = command.get_help(typer.Context(command, info_name=name, terminal_width=78, max_content_width=78))
        assert max(map(len, text.splitlines())) <= 80, name
        assert "…" not in text, name
        assert not isinstance(command, TyperGroup) or text.count("...") == 1, "of `COMMAND [ARGS]...`"
        assert "--no-no-" not in text, name
        shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
        for option in (option for parameter in shown for option in parameter.opts if option[:2] == "--"):
            assert option in text, name


def test_a_switch_that_is_off_has_no_opposite(monkeypatch, capsys):
    assert run("run", "job.py", "--no-fresh", monkeypatch=monkeypatch) == 2
    assert "no such option: --no-fresh" in capsys.readouterr().err
