"""Runs a tutorial as a reader does: saves its files, runs its commands in order, in one folder and one shell each.

Used by the tests of the levels whose servers a tutorial needs.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.support.waiting import DEADLINE_S, patience

ROOT = Path(__file__).parents[2]
#: A file to save (with its name), or commands.
_BLOCK = re.compile(r'^```(?:python title="([^"]+)"|sh)\n(.*?)^```', re.DOTALL | re.MULTILINE)
#: Commands that the test's own servers and environment replace.
_SET_UP = ("infra/bootstrap.py setup", ".venv/bin/activate", "infra/servers.sh", "infra/airflow.py")
LIMIT_S = 900
#: A loop that waits for a condition: the command that is asked, and the words that its output must have.
_LOOP = re.compile(r"^until (?P<ask>[^|\n]+?) \| (?P<test>[^\n]+?); do sleep 1; done$", re.MULTILINE)
#: The same with an end: after the deadline it says what it waited for, and what the command has printed instead.
_BOUNDED = """\
last=$((SECONDS + {limit_s}))
until {ask} | {test}; do
  if [ $SECONDS -ge $last ]; then
    echo {failed} >&2
    {{ {ask} || true; }} >&2
    exit 1
  fi
  sleep 1
done"""


def with_ends(commands, limit_s):
    """Return commands whose `until` loops end with an error after `limit_s` seconds."""

    def bounded(loop):
        failed = f"the tutorial waits for `{loop['ask']} | {loop['test']}` for more than {limit_s} s; it prints:"
        return _BOUNDED.format(limit_s=limit_s, failed=shlex.quote(failed), **loop.groupdict())

    return _LOOP.sub(bounded, commands)


class Tutorial:
    """One page; `replaced` are texts that this machine replaces, for example the address of the broker."""

    def __init__(self, name, folder, replaced=(), environment=()):
        self.text = (ROOT / "docs" / "tutorials" / f"{name}.md").read_text(encoding="utf-8")
        self.folder, self.replaced = folder, dict(replaced)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        home = {"PENSTOCK_HOME": str(folder / "home"), "PATH": path, "NO_COLOR": "1", "COLUMNS": "200"}
        self.environment = {**os.environ, **home, **dict(environment)}

    def run(self):
        """Return what the commands have printed, one text for each block."""
        printed = []
        for name, written in _BLOCK.findall(self.text):
            text = written
            for before, after in self.replaced.items():
                text = re.sub(before, after, text)
            if name:
                (self.folder / name).write_text(text)
            elif commands := [line for line in text.splitlines() if not any(word in line for word in _SET_UP)]:
                printed.append(self._commands("\n".join(commands)))
        return printed

    def _commands(self, text):
        script = with_ends(text, int(DEADLINE_S * patience()))
        # by standard input: a `pkill -f` of the page must not find its own shell
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-s"],
            cwd=self.folder, env=self.environment, input=script, capture_output=True, text=True, timeout=LIMIT_S,
        )  # fmt: skip
        said = f"{done.stdout}\n{done.stderr}"
        assert done.returncode == 0, f"$ {text}\n{said}"
        return said
