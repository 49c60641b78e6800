"""A `penstock` command as a separate process: the work of operators that a REST request cannot do.

A job file may import anything and needs an interpreter with these packages, and a process can be ended. A command that
sends requests to a cluster uses a token, so that a repetition sends the same request.

The process ends with the worker. The kernel kills it when the task's process is killed. The task's process is killed
when its supervisor is gone, since its result would be lost and Airflow starts the next try.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.core.errors import PenstockError, UsageError
from penstock_airflow.hooks.penstock import Place

#: Exit code of a command whose repetition would fail again.
_BAD_USAGE = 2
#: Interval of the check that the supervisor of the task's process exists.
_LOOK_SECONDS = 1.0


class Command:
    """One run of `penstock ARGUMENTS --json`; `environment` adds variables for the job file."""

    def __init__(self, place: Place, arguments: Sequence[str], environment: Mapping[str, Any] | None = None) -> None:
        """Prepare; `run` starts the process."""
        self._argv = [place.python, "-m", "penstock.cli.main", *arguments, "--json"]
        own = {name: str(value) for name, value in (environment or {}).items()}
        ours = {"NO_COLOR": "1", "PENSTOCK_DIE_WITH_PARENT": str(os.getpid())}
        self._environment = {**os.environ, **own, **place.environment, **ours}
        self._supervisor = os.getppid()
        self._process: subprocess.Popen[str] | None = None
        #: Whether it ended in an error that another try would meet again.
        self.refused = False

    def run(self, *, also: Sequence[int] = ()) -> dict[str, Any]:
        """Return the result in its last line; `also`: exit codes with a result too.

        Raises:
            PenstockError: it ended with another code; `refused` tells whether that is final.
        """
        try:
            self._process = subprocess.Popen(
                self._argv, env=self._environment, text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
        except OSError as error:
            self.refused = True
            msg = f"{self._argv[0]} cannot be started: {error}"
            raise UsageError(msg, hint="check the connection's field `python`") from error
        out, err = self._ended(self._process)
        code, said = self._process.returncode, _last(out)
        if code != 0 and not (code in also and said.startswith("{")):
            self.refused = code == _BAD_USAGE
            raise PenstockError(_last(err) or f"{' '.join(self._argv[3:5])} ended with code {code}")
        if not said.startswith("{"):
            self.refused = True
            raise PenstockError(f"{' '.join(self._argv[3:5])} printed no result: check the connection's field `python`")
        return dict(json.loads(said))

    def _ended(self, process: subprocess.Popen[str]) -> tuple[str, str]:
        """Return the output of the ended process."""
        while True:
            try:
                return process.communicate(timeout=_LOOK_SECONDS)
            except subprocess.TimeoutExpired:
                if os.getppid() != self._supervisor:
                    process.kill()

    def end(self) -> None:
        """End the process, from a signal handler; it sends no request after that."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
