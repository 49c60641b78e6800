"""`penstock run FILE --cluster ... --detached` as a process of its own, for `SubmitJobOperator`.

A process, because a job file imports what it likes, with the interpreter that has it; the same token makes it the same
job however often it is run.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from penstock.core.errors import PenstockError, UsageError
from penstock_airflow import templated
from penstock_airflow.hooks.penstock import Place

_FLAGS = ("fresh", "no_claim", "accept_duplicates")
_OPTIONS = (*_FLAGS, "allow_non_restored_state", "settings")
#: Exit code of the command for what trying again would not mend.
_BAD_USAGE = 2
#: A worker that is told to end has a few seconds.
_LET_END_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class JobFile:
    """A job file and how it is to be run."""

    path: str
    parallelism: int | None = None
    from_uri: str = ""
    flags: tuple[str, ...] = ()
    allow_non_restored_state: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, path: str, parallelism: int | str | None, from_uri: str | None, options: Mapping[str, Any]) -> Self:
        """Return it of values that templates may have made texts.

        Raises:
            UsageError: an option does not exist, or a value is not what it has to be.
        """
        unknown = sorted(set(options) - set(_OPTIONS))
        if unknown:
            raise UsageError(f"unknown options {', '.join(unknown)}", hint=f"there are {', '.join(_OPTIONS)}")
        return cls(
            path,
            templated.count("parallelism", parallelism),
            templated.text(from_uri),
            tuple(name for name in _FLAGS if templated.flag(name, options.get(name))),
            tuple(templated.texts("allow_non_restored_state", options.get("allow_non_restored_state"))),
            templated.mapping("settings", options.get("settings")),
        )

    def arguments(self) -> list[str]:
        """Return the command line's."""
        found = [self.path]
        if self.parallelism is not None:
            found += ["--parallelism", str(self.parallelism)]
        if self.from_uri:
            found += ["--from", self.from_uri]
        found += [f"--{name.replace('_', '-')}" for name in self.flags]
        for state in self.allow_non_restored_state:
            found += ["--allow-non-restored-state", state]
        for name, value in self.settings.items():
            found += ["--set", f"{name}={value}"]
        return found


class JobCommand:
    """One run of the command."""

    def __init__(self, job: JobFile, place: Place, token: str) -> None:
        """Nothing runs yet."""
        self._argv = [
            place.python, "-m", "penstock.cli.main", "run", *job.arguments(),
            "--cluster", place.url, "--detached", "--token", token, "--attach", "--json",
        ]  # fmt: skip
        self._environment = place.environment
        self._process: subprocess.Popen[str] | None = None
        self._ended = threading.Event()
        self._job_id = ""
        #: Whether it ended in an error that another try would meet again.
        self.refused = False

    def run(self) -> str:
        """Return the id of the job.

        Raises:
            PenstockError: it could not be submitted; `refused` says whether that is final.
        """
        environment = {**os.environ, **self._environment, "NO_COLOR": "1"}
        try:
            self._process = subprocess.Popen(
                self._argv, env=environment, text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
        except OSError as error:
            self.refused = True
            msg = f"{self._argv[0]} cannot be started: {error}"
            raise UsageError(msg, hint="see the connection's `python`") from error
        try:
            out, err = self._process.communicate()
            if self._process.returncode != 0:
                self.refused = self._process.returncode == _BAD_USAGE
                raise PenstockError(_last(err) or f"penstock run ended with code {self._process.returncode}")
            self._job_id = str(json.loads(_last(out))["jobid"])
            return self._job_id
        finally:
            self._ended.set()

    def interrupted(self, *, let_end: bool) -> str:
        """End the process, from a signal's handler; return the job's id if it has one. `let_end`: wait for it."""
        process = self._process
        if process is None:
            return ""
        if let_end and not self._ended.is_set():
            try:
                out, _ = process.communicate(timeout=_LET_END_SECONDS)
                return str(json.loads(_last(out))["jobid"]) if process.returncode == 0 else ""
            except subprocess.TimeoutExpired:
                pass
        if process.poll() is None:
            process.kill()
        return self._job_id


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
