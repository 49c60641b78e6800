"""The base of operators that run a `penstock` command on the worker: start, end and errors of the command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from penstock.core.errors import PenstockError, UsageError
from penstock_airflow.command import Command
from penstock_airflow.command_options import Kind, arguments_of, environment_of
from penstock_airflow.operators.operator import PenstockOperator

#: Options as given, and the table of their kinds.
Given = tuple[Mapping[str, Any], Mapping[str, Kind]]
#: Options that are separate arguments in Python.
PARALLELISM: dict[str, Kind] = {"parallelism": "count"}


class CommandOperator(PenstockOperator):
    """Runs one command at a time, with the interpreter that the connection names."""

    _command: Command | None = None

    def run_command(
        self, head: Sequence[str], *given: Given, tail: Sequence[str] = (), also: Sequence[int] = ()
    ) -> dict[str, Any]:
        """Run `penstock HEAD OPTIONS TAIL` to its end and return its result; `also`: exit codes with a result.

        Raises:
            AirflowFailException: it is wrong, and another try would be.
            AirflowException: it failed.
        """
        try:
            line = [*head, *(part for options, kinds in given for part in arguments_of(options, kinds)), *tail]
            environment = {name: value for options, _ in given for name, value in environment_of(options).items()}
            self._command = Command(self.hook.place, line, environment)
            return self._command.run(also=also)
        except UsageError as error:
            raise AirflowFailException(str(error)) from error
        except PenstockError as error:
            final = self._command is not None and self._command.refused
            raise (AirflowFailException if final else AirflowException)(str(error)) from error
        finally:
            self._command = None

    def end_command(self) -> None:
        """End the command, from a signal handler; do nothing if none runs."""
        if self._command is not None:
            self._command.end()
