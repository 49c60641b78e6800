"""A `penstock` command as a process of its own: what operators do that a REST request cannot.

A process, because a job file imports what it likes, with the interpreter that has it, and because it can be ended. What
asks a cluster has a token, so that it asks for the same however often it is run.

It ends with the worker: the kernel kills it when the task's process is killed, and that one when its own supervisor is
gone, since nobody takes a task's result then and Airflow has begun, or will begin, the next try.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.core.errors import PenstockError, UsageError
from penstock_airflow.hooks.penstock import Place

#: Exit code of a command for what trying again would not mend.
_BAD_USAGE = 2
#: How often it is looked whether the supervisor of the task's process is there.
_LOOK_SECONDS = 1.0


class Command:
    """One run of `penstock ARGUMENTS --json`; `environment` is for what it imports."""

    def __init__(self, place: Place, arguments: Sequence[str], environment: Mapping[str, Any] | None = None) -> None:
        """Nothing runs yet."""
        self._argv = [place.python, "-m", "penstock.cli.main", *arguments, "--json"]
        own = {name: str(value) for name, value in (environment or {}).items()}
        ours = {"NO_COLOR": "1", "PENSTOCK_DIE_WITH_PARENT": str(os.getpid())}
        self._environment = {**os.environ, **own, **place.environment, **ours}
        self._supervisor = os.getppid()
        self._process: subprocess.Popen[str] | None = None
        #: Whether it ended in an error that another try would meet again.
        self.refused = False

    def run(self, *, also: Sequence[int] = ()) -> dict[str, Any]:
        """Return what it says in its last line; `also`: exit codes that are an answer too.

        Raises:
            PenstockError: it ended with another code; `refused` says whether that is final.
        """
        try:
            self._process = subprocess.Popen(
                self._argv, env=self._environment, text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
        except OSError as error:
            self.refused = True
            msg = f"{self._argv[0]} cannot be started: {error}"
            raise UsageError(msg, hint="see the connection's `python`") from error
        out, err = self._ended(self._process)
        code, said = self._process.returncode, _last(out)
        if code != 0 and not (code in also and said.startswith("{")):
            self.refused = code == _BAD_USAGE
            raise PenstockError(_last(err) or f"{' '.join(self._argv[3:5])} ended with code {code}")
        if not said.startswith("{"):
            self.refused = True
            raise PenstockError(f"{' '.join(self._argv[3:5])} gave no answer: see the connection's `python`")
        return dict(json.loads(said))

    def _ended(self, process: subprocess.Popen[str]) -> tuple[str, str]:
        """Return what it has written, when it has ended."""
        while True:
            try:
                return process.communicate(timeout=_LOOK_SECONDS)
            except subprocess.TimeoutExpired:
                if os.getppid() != self._supervisor:
                    process.kill()

    def end(self) -> None:
        """End the process, from a signal's handler: it asks nobody for anything after that."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
