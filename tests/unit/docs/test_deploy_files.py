"""Units of systemd, containers and the image call commands and options that exist."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import typer
from documents import names, prose, tables
from tests.support.monitoring import metrics
from typer.main import get_command

from penstock.cli.start import processes
from penstock.config.config_file import configuration

INFRA = Path(__file__).parents[3] / "infra"
UNITS = sorted((INFRA / "systemd").glob("*.service"))


def values(unit, name):
    return [line.partition("=")[2] for line in unit.read_text().splitlines() if line.startswith(f"{name}=")]


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_a_unit_starts_a_process_with_options_that_exist(unit):
    (line,) = values(unit, "ExecStart")
    program, command, *words = shlex.split(line)
    assert program.endswith("/bin/penstock")
    known = {option for name in option_names(command) for option in name}
    assert {word for word in words if word.startswith("--")} <= known


def option_names(command):
    app = typer.Typer()
    app.command()(getattr(processes, command))
    return [parameter.opts for parameter in get_command(app).params]


def test_variables_of_the_example_are_documented():
    documented = (INFRA.parent / "docs" / "reference" / "environment.md").read_text()
    for line in (INFRA / "systemd" / "penstock.env").read_text().splitlines():
        name = line.partition("=")[0]
        assert name.startswith("#") or f"`{name}`" in documented, name


def test_the_example_configuration_is_accepted():
    found = configuration(environment={}, folder=INFRA / "systemd")
    assert found.path == INFRA / "systemd" / "penstock.toml"
    assert found.settings.taskmanager.slots == 4


def test_containers_run_commands_with_options_that_exist():
    """The file is read as text: the project needs no parser of YAML."""
    commands = re.findall(
        r"^    command: ((?:job|task)manager .*)$", (INFRA / "compose.yaml").read_text(), re.MULTILINE
    )
    assert [line.split()[0] for line in commands] == ["jobmanager", "jobmanager", "taskmanager"]
    for command, *words in map(shlex.split, commands):
        known = {option for name in option_names(command) for option in name}
        assert {word for word in words if word.startswith("--")} <= known


def test_the_image_installs_extras_that_exist():
    extras = tomllib.loads((INFRA.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (wanted,) = re.findall(r"\.whl\)\[([\w,]+)\]", (INFRA / "Dockerfile").read_text())
    assert set(wanted.split(",")) <= set(extras)


def test_metrics_of_alerts_and_dashboard_are_documented():
    page = "docs/reference/metrics.md"
    prefixes = [names(first)[0] for first, *_ in tables(page, "prefix")]
    documented, asked = set(names(prose(page))), metrics()
    assert len(asked) > 25
    for where, name in asked:
        prefix = max((prefix for prefix in prefixes if name.startswith(prefix)), key=len, default="")
        assert name.removeprefix(prefix) in documented, f"{where} asks for {name}"
