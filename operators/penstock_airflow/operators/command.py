"""The base of operators that run a `penstock` command on the worker, and the command as a separate process.

A job file needs an interpreter with its packages, and a process can be ended. The process ends with the worker: the
kernel kills it with the task's process. A command that sends requests uses a token, so that a repetition sends the
same request.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from penstock.core.errors import PenstockError, UsageError
from penstock_airflow.command_options import Kind, arguments_of, environment_of
from penstock_airflow.hooks.penstock import ClusterConnection
from penstock_airflow.operators.operator import PenstockOperator

#: Exit codes of a command whose repetition would fail again: wrong usage, and a permanent error.
_FINAL = (2, 3)
#: Beginning of the line of a command's error; lines of the user's code and the row follow it.
_ERROR = "penstock: "
#: Python's error about a module; without a line of penstock it comes from an interpreter that cannot run penstock.
_MISSING_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
#: Interval of the check that the supervisor of the task's process exists.
_LOOK_SECONDS = 1.0


class Command:
    """One run of `penstock ARGUMENTS --json`; `environment` adds variables for the job file."""

    def __init__(
        self, place: ClusterConnection, arguments: Sequence[str], environment: Mapping[str, Any] | None = None
    ) -> None:
        """Prepare; `run` starts the process."""
        self._argv = [place.python, "-m", "penstock.cli.main", *arguments, "--json"]
        own = {name: str(value) for name, value in (environment or {}).items()}
        ours = {"NO_COLOR": "1", "PENSTOCK_DIE_WITH_PARENT": str(os.getpid())}
        self._environment = {**os.environ, **own, **place.environment, **ours}
        self._supervisor = os.getppid()
        self._process: subprocess.Popen[str] | None = None
        #: Whether it ended in an error that another try would meet again.
        self.refused = False
        #: Lines beside its result and its error: warnings, output of the job file, the failed lines of its code.
        self.told: list[str] = []

    def run(self, *, accepted_codes: Sequence[int] = ()) -> dict[str, Any]:
        """Return the result in its last line; `accepted_codes`: exit codes with a result too.

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
        out, err = map(_lines, self._ended(self._process))
        code, said = self._process.returncode, out[-1] if out else ""
        if code != 0 and not (code in accepted_codes and said.startswith("{")):
            self.refused = code in _FINAL
            message, more = _error_in(err)
            self.told = out + more
            if not message.startswith(_ERROR) and (missing := _MISSING_MODULE.search(message)):
                self.refused = True
                msg = f"{self._argv[0]} cannot run penstock: it has no module {missing[1]!r}"
                hint = "install penstock in it, or name another in the connection's field `python`"
                raise PenstockError(msg, hint=hint)
            raise PenstockError(message or f"{' '.join(self._argv[3:5])} ended with code {code}")
        self.told = out[:-1] + err
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


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def _error_in(lines: list[str]) -> tuple[str, list[str]]:
    """Return the line of a command's error, else the last one, and the other lines."""
    errors = [number for number, line in enumerate(lines) if line.startswith(_ERROR)]
    at = errors[-1] if errors else len(lines) - 1
    return (lines[at], lines[:at] + lines[at + 1 :]) if lines else ("", [])


#: Options as given, and the table of their kinds.
Given = tuple[Mapping[str, Any], Mapping[str, Kind]]
#: Options that are separate arguments in Python.
PARALLELISM: dict[str, Kind] = {"parallelism": "count"}


class CommandOperator(PenstockOperator):
    """Runs one command at a time, with the interpreter that the connection names."""

    _command: Command | None = None

    def run_command(
        self, head: Sequence[str], *given: Given, tail: Sequence[str] = (), accepted_codes: Sequence[int] = ()
    ) -> dict[str, Any]:
        """Run `penstock HEAD OPTIONS TAIL` to its end and return its result.

        `accepted_codes`: exit codes with a result too.

        Raises:
            AirflowFailException: it is wrong, and another try would be.
            AirflowException: it failed.
        """
        try:
            line = [*head, *(part for options, kinds in given for part in arguments_of(options, kinds)), *tail]
            environment = {name: value for options, _ in given for name, value in environment_of(options).items()}
            self._command = Command(self.hook.place, line, environment)
            return self._command.run(accepted_codes=accepted_codes)
        except UsageError:
            raise
        except PenstockError as error:
            final = self._command is not None and self._command.refused
            raise (AirflowFailException if final else AirflowException)(str(error)) from error
        finally:
            for told in self._command.told if self._command is not None else ():
                self.log.info("%s", told)
            self._command = None

    def end_command(self) -> None:
        """End the command, from a signal handler; do nothing if none runs."""
        if self._command is not None:
            self._command.end()
