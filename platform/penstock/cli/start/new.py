"""`penstock new NAME`: a folder with a job, its test, servers for it, and a DAG that starts it."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.options import say
from penstock.core.errors import UsageError

#: Files of a project; the templates in `project/` end in `.txt`, so that no tool takes them for code of penstock.
_FILES = ("README.md", "compose.yaml", "dag.py", "job.py", "test_job.py")
#: Stands for the project's name in the templates.
_NAME = "PROJECT"


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the job and of its new folder.")],
) -> None:
    """Create a project: a job with its test, servers and a DAG."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,63}", name):
        msg = f"{name!r} cannot be the name of a project"
        raise UsageError(msg, hint="use letters, digits, - and _, with a letter first, for example order-totals")
    folder = Path(name)
    try:
        folder.mkdir()
    except FileExistsError as error:
        raise UsageError(f"{folder} exists already", hint="choose another name, or remove it") from error
    except OSError as error:
        raise UsageError(
            f"cannot create {folder}: {error.strerror}", hint="go to a folder that you can write"
        ) from error
    templates = resources.files(__package__) / "project"
    for file in _FILES:
        text = (templates / f"{file}.txt").read_text(encoding="utf-8").replace(_NAME, name)
        (folder / file).write_text(text, encoding="utf-8")
    say(f"{folder}: {', '.join(_FILES)}")
    say(f"next: cd {folder}, then pytest; README.md says how to run the job")
