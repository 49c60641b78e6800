"""`penstock config show`: every setting with its value and origin."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from penstock.cli.options import JsonOption, print_json, say
from penstock.config.config_file import Resolved, configuration
from penstock.core.errors import UsageError, did_you_mean

commands = typer.Typer(help="The configuration.", no_args_is_help=True, add_completion=False, rich_markup_mode=None)


@commands.callback()
def _config() -> None:
    """The configuration."""


@commands.command("show")
def show(
    section: Annotated[
        str, typer.Argument(help="Only this section: job, cluster, jobmanager, taskmanager or client.")
    ] = "",
    *,
    changed: Annotated[bool, typer.Option("--changed", help="Only settings that are not at their default.")] = False,
    json: JsonOption = False,
) -> None:
    """Print settings with value and origin.

    By priority: option of a command, environment variable, configuration file, default.
    """
    configured = configuration()
    entries = [
        entry
        for entry in configured.entries()
        if entry[0].startswith(section) and (not changed or entry[2] != "default")
    ]
    sections = sorted({name.partition(".")[0] for name, _, _ in configured.entries()})
    if section and section not in sections:
        raise UsageError(f"no section {section!r}", hint=did_you_mean(section, sections))
    if json:
        print_json([{"name": name, "value": value, "origin": origin} for name, value, origin in entries])
        return
    say(_file_line(configured))
    if not entries:
        return
    texts = [(name, _text(value), origin) for name, value, origin in entries]
    wide, wider = (max(len(entry[column]) for entry in texts) for column in (0, 1))
    for name, value, origin in texts:
        say(f"{name:{wide}}  {value:{wider}}  {origin}")


def _file_line(configured: Resolved) -> str:
    return f"configuration file: {configured.path or 'none'}"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or value in ((), []):
        return "-"
    return str(value) or '""'
