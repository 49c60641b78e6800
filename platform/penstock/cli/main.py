"""Entry point of `penstock`.

Registers the commands and turns errors into one line and an exit code (0 done, 1 failed, 2 bad usage).
"""

from __future__ import annotations

import sys
from typing import NoReturn

import click
import typer

from penstock.cli import cluster, demo, jobs, processes, run
from penstock.core.errors import PenstockError, UsageError

commands = typer.Typer(
    name="penstock",
    help="Stateful, exactly-once stream jobs in Python.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
commands.command("run")(run.run)
commands.command("demo")(demo.demo)
commands.command("list")(jobs.list_jobs)
commands.command("show")(jobs.show)
commands.command("cancel")(jobs.cancel)
commands.command("stop")(jobs.stop)
commands.command("savepoint")(jobs.savepoint)
commands.command("story")(jobs.story)
commands.command("logs")(jobs.logs)
commands.add_typer(cluster.commands, name="cluster")
commands.command("jobmanager")(processes.jobmanager)
commands.command("taskmanager")(processes.taskmanager)


def app() -> NoReturn:
    """Run the command line and exit."""
    try:
        code = commands(standalone_mode=False)
    except PenstockError as error:
        _fail(str(error), 2 if isinstance(error, UsageError) else 1)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        _fail("interrupted", 130)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(text: str, code: int) -> NoReturn:
    sys.stderr.write(f"penstock: {text}\n")
    sys.exit(code)


if __name__ == "__main__":
    app()
