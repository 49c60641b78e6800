"""Entry point of `penstock`.

Registers the commands and turns errors into one line and an exit code (`_code_of`). A command's module is
imported when the command is called: JobManager and TaskManagers start through this file too and must stay small.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

import penstock
from penstock.cli.serve import die_with_parent
from penstock.config.config_file import FILE_VARIABLE
from penstock.core.errors import Cause, PenstockError, UsageError, nearest

#: Command: its function (or sub-commands), in the order of the help text.
_COMMANDS = {
    "run": "penstock.cli.start.run:run",
    "new": "penstock.cli.start.new:new",
    "preview": "penstock.cli.start.preview:preview",
    "demo": "penstock.cli.demo.demo:demo",
    "list": "penstock.cli.running.jobs:list_jobs",
    "show": "penstock.cli.running.jobs:show",
    "cancel": "penstock.cli.running.jobs:cancel",
    "stop": "penstock.cli.running.jobs:stop",
    "savepoint": "penstock.cli.running.jobs:savepoint",
    "rescale": "penstock.cli.running.jobs:rescale",
    "upgrade": "penstock.cli.running.upgrade:upgrade",
    "explain": "penstock.cli.running.explain:explain",
    "story": "penstock.cli.running.jobs:story",
    "logs": "penstock.cli.running.jobs:logs",
    "jobmanager": "penstock.cli.start.processes:jobmanager",
    "taskmanager": "penstock.cli.start.processes:taskmanager",
    "cluster": "penstock.cli.start.cluster:commands",
    "config": "penstock.cli.start.config:commands",
    "compile": "penstock.cli.start.processes:compile_all",
    "check": "penstock.cli.start.check:check",
    "state": "penstock.cli.running.state_commands:commands",
    "backfill": "penstock.cli.start.backfill:backfill",
    "bench": "penstock_lab.bench.command:bench",
}
_CHECKOUT = "run it in a checkout of the repository, after `python3 infra/bootstrap.py setup`"
#: Exit codes of errors: another attempt can succeed, the command is wrong, another attempt fails in the same way.
_FAILED, _BAD_USAGE, _PERMANENT = 1, 2, 3
#: The shell's exit code for a process ended by Ctrl-C.
_INTERRUPTED = 130
#: Newer releases of typer bundle click: the classes are found through an exported one.
_CLICK: dict[str, Any] = {kind.__name__: kind for kind in typer.BadParameter.__mro__}
_ClickException, _ClickUsageError = _CLICK["ClickException"], _CLICK["UsageError"]


class _Commands(TyperGroup):
    """Imports a command's module on demand."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the base class's signature
        from penstock.client.kernels import has_lab

        return [name for name in _COMMANDS if name != "bench" or has_lab()]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            raise UsageError(f"no such command {args[0]!r}", hint=_similar(args[0], self.list_commands(ctx)))
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name].partition(":")
        found = getattr(_command_module(module), name)
        if not isinstance(found, typer.Typer):
            function, found = found, typer.Typer(add_completion=False, rich_markup_mode=None)
            found.command(cmd_name)(function)
        command = typer.main.get_command(found)
        command.name = cmd_name
        _hide_negated_flags(command)
        return command


def _similar(name: str, known: list[str]) -> str:
    close = nearest(name, known)
    return f"did you mean {close!r}?" if close else "`penstock --help` lists the commands"


def _command_module(name: str) -> Any:
    """Import the module of a command.

    Raises:
        UsageError: the command is part of `penstock_lab`, which only a checkout has.
    """
    if name.startswith("penstock_lab."):
        from penstock.client.kernels import has_lab

        if not has_lab():
            raise UsageError("the benchmarks are not part of the installed package", hint=_CHECKOUT)
    return importlib.import_module(name)


def _hide_negated_flags(command: Any) -> None:
    """Remove `--no-x` of each switch `--x` that is off by default."""
    for below in getattr(command, "commands", {}).values():
        _hide_negated_flags(below)
    for parameter in command.params:
        if getattr(parameter, "is_flag", False) and parameter.default is False:
            parameter.secondary_opts = []


commands = typer.Typer(
    name="penstock",
    cls=_Commands,
    help="Stateful, exactly-once stream jobs in Python.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    # plain text wraps at any width; tables would truncate option names
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    """Print the version and end, if the option is given."""
    if wanted:
        sys.stdout.write(f"penstock {penstock.__version__}\n")
        raise typer.Exit


@commands.callback()
def _penstock(
    config: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Configuration file; default: $PENSTOCK_CONFIG, else ./penstock.toml."),
    ] = None,
    version: Annotated[  # noqa: ARG001 - its callback acts on it
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Stateful, exactly-once stream jobs in Python."""
    if config is not None:
        os.environ[FILE_VARIABLE] = str(Path(config).absolute())  # child processes and the job file read it too


def app() -> NoReturn:
    """Run the command line and exit."""
    try:
        die_with_parent()
        code = commands(prog_name="penstock", standalone_mode=False)
    except PenstockError as error:
        _fail("\n".join([str(error), *getattr(error, "__notes__", ())]), _code_of(error))
    except _ClickUsageError as error:
        if "\n" in error.format_message():  # the help of a group that was called without a command
            error.show()
            sys.exit(_BAD_USAGE)
        _fail(_misuse(error), _BAD_USAGE)
    except _ClickException as error:
        error.show()
        sys.exit(_BAD_USAGE)
    except (typer.Abort, KeyboardInterrupt):
        _fail("interrupted", _INTERRUPTED)
    if code == _INTERRUPTED:  # typer returns this for Ctrl-C, without a message
        _fail("interrupted", _INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


def _code_of(error: PenstockError) -> int:
    if isinstance(error, UsageError):
        return _BAD_USAGE
    return _FAILED if error.cause is Cause.TRANSIENT else _PERMANENT


def _misuse(error: Any) -> str:
    """Return one line about a wrong argument or option."""
    text = error.format_message().strip().rstrip(".")
    text = text[:1].lower() + text[1:]
    return f"{text} (`{error.ctx.command_path} --help` explains all)" if error.ctx is not None else text


def _fail(text: str, code: int) -> NoReturn:
    sys.stderr.write(f"penstock: {text}\n")
    sys.exit(code)


if __name__ == "__main__":
    app()
