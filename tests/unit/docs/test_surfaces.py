"""The reference's tables of commands, REST paths and environment variables match the code."""

import inspect
import re

import typer
from documents import PAGES, ROOT, blocks, names, read, tables

from penstock.cli.main import commands
from penstock.rest.server.app import create_app

#: Set by our own processes for their children, by tests, or of the servers' script.
INTERNAL = {
    "PENSTOCK_DIE_WITH_PARENT", "PENSTOCK_FAILPOINTS", "PENSTOCK_FAILPOINT_DIR", "PENSTOCK_TEST_SESSION",
    "PENSTOCK_SERVERS_DATA", "PENSTOCK_WORKER_KEY",
}  # fmt: skip


def found_commands():
    """Return every visible command with its visible long options."""
    group = typer.main.get_command(commands)
    context = typer.Context(group)
    found = {}
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        below = getattr(command, "commands", None)
        for label, one in {f"{name} {n}": c for n, c in below.items()}.items() if below else [(name, command)]:
            if not one.hidden:
                visible = [p for p in one.params if not getattr(p, "hidden", False) and p.name != "help"]
                found[label] = {o for p in visible for o in p.opts if o.startswith("--")}
    return found


def test_commands_and_options():
    table, listed = {}, tables("docs/reference/cli.md", "command")
    for command, options, _ in listed:
        label = re.sub(
            r" (JOB(\.PY)?|NAME|SOURCE|DIR|\[?URI\]?|OTHER|TARGET|UID|STATE|KEY\.\.\.|\[(STATE|N|WHAT|SECTION)\])",
            "",
            names(command)[0],
        )
        table[label] = set(names(options))
    assert table == found_commands()
    assert len(table) == len(listed)


def test_commands_of_the_pages_exist():
    known, seen = found_commands(), 0
    for page in PAGES:
        for block in [*blocks(page, "sh"), *blocks(page, "text")]:
            joined = block.replace("\\\n", " ")
            for line in re.findall(r"^(?:until |.*\$\()?penstock ([a-z][^#|;&)\n]*)", joined, re.MULTILINE):
                words = line.split()
                label = " ".join(words[:2]) if " ".join(words[:2]) in known else words[0]
                options = {word.partition("=")[0] for word in words if word.startswith("--")}
                assert options <= known[label], f"{page.name}: penstock {line}"
                seen += 1
    assert seen > 100


def test_rest_paths():
    listed = [path for first, *_ in tables("docs/reference/rest.md", "method and path") for path in names(first)]
    routes = create_app(None, None, None).openapi()["paths"]
    wanted = {f"{verb.upper()} {path.removeprefix('/v1')}" for path, verbs in routes.items() for verb in verbs}
    assert sorted(listed) == sorted(wanted)


def test_environment_variables():
    listed = [name for first, *_ in tables("docs/reference/environment.md", "variable") for name in names(first)]
    sources = [path for folder in ("platform", "connectors", "infra") for path in (ROOT / folder).rglob("*.py")]
    used = {name for path in sources for name in re.findall(r"PENSTOCK_[A-Z0-9_]*[A-Z0-9]\b(?!_)", path.read_text())}
    assert {name for name in used if not name.endswith("_S3")} - INTERNAL == set(listed)
    assert len(set(listed)) == len(listed)


def test_exit_codes():
    text = read("docs/reference/cli.md")
    source = inspect.getsource(__import__("penstock.cli.main", fromlist=["app"]).app)
    for code in re.findall(r"\b130\b", source):
        assert f"{code} interrupted" in text
    assert "0 done, 1 failed, 2 bad usage" in text
