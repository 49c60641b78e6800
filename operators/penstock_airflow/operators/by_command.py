"""What operators share that run a `penstock` command on the worker: how it starts and ends, what its errors mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from penstock.core.errors import PenstockError, UsageError
from penstock_airflow.command import Command
from penstock_airflow.command_options import Kind, arguments_of, environment_of
from penstock_airflow.operators.operator import PenstockOperator

#: Options as they were given, and which there are.
Given = tuple[Mapping[str, Any], Mapping[str, Kind]]
#: Those that are arguments of their own in Python.
PARALLELISM: dict[str, Kind] = {"parallelism": "count"}


class CommandOperator(PenstockOperator):
    """One command at a time, run by the interpreter that the connection names."""

    _command: Command | None = None

    def run_command(
        self, head: Sequence[str], *given: Given, tail: Sequence[str] = (), also: Sequence[int] = ()
    ) -> dict[str, Any]:
        """Run `penstock HEAD OPTIONS TAIL` to its end and return what it says; `also`: exit codes that are an answer.

        Raises:
            AirflowFailException: it is wrong, and another try would be. AirflowException: it failed.
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
        """End it, from a signal's handler; nothing if none runs."""
        if self._command is not None:
            self._command.end()
