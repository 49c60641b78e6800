"""Process logs on stderr: plain lines, or one JSON object a line; called by `cli.serve` and the workers.

The context of a record tells its origin: `task.drive.subtask` enters the scope of the subtask at each step, so that
logs of users' functions carry job, operator, subtask and attempt. In the format `json`, printed lines become records
too. Only output that C libraries write to the descriptor itself does not.
"""

from __future__ import annotations

import contextvars
import datetime as dt
import io
import json
import logging
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol, TextIO

from penstock.core.secrets import redact

if TYPE_CHECKING:
    from typing_extensions import Buffer

LogFormat = Literal["text", "json"]
#: Characters printed without a line end that make a record by themselves.
_LONGEST_LINE = 64 << 10
Fields = Mapping[str, str | int]


class Scope(Protocol):
    """The origin of log records."""

    def fields(self) -> Fields:
        """Return the present fields: `job`, `operator` and so on."""


class FixedScope:
    """A scope that does not change."""

    def __init__(self, fields: Fields) -> None:
        """Always return `fields`."""
        self._fields = fields

    def fields(self) -> Fields:
        """Return the fields."""
        return self._fields


_scope: contextvars.ContextVar[Scope | None] = contextvars.ContextVar("penstock_log_scope", default=None)
#: Sets the scope of this thread, or of this task of an event loop.
enter = _scope.set


def fixed_log_context() -> contextvars.Context:
    """Return a context with the present fields as a fixed scope, for work that is done later in another thread."""
    context, scope = contextvars.copy_context(), _scope.get()
    if scope is not None:
        context.run(enter, FixedScope(scope.fields()))
    return context


def job_extra(job_id: str, job_name: str) -> dict[str, Fields]:
    """Return the `extra` of a record about a job, for code outside of any scope."""
    return {"scope": {"job": job_id, "job_name": job_name}}


class _Formatter(logging.Formatter):
    """The common part of both formats: time, fields, exceptions, redaction of secrets."""

    def __init__(self, fields: Fields) -> None:
        super().__init__()
        self._own = dict(fields)

    def _parts(self, record: logging.LogRecord) -> tuple[str, str, dict[str, str | int], str]:
        """Return time, message, fields and exception."""
        moment = dt.datetime.fromtimestamp(record.created, dt.UTC)
        scope = _scope.get()
        fields: dict[str, str | int] = {**self._own, **(scope.fields() if scope is not None else {})}
        fields |= getattr(record, "scope", {})
        error = self.formatException(record.exc_info) if record.exc_info else ""
        time = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return time, redact(record.getMessage()), fields, redact(error)


class JsonFormatter(_Formatter):
    """Formats records as one JSON object a line: `time`, `level`, `logger`, `message`, scope fields, `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        time, message, fields, error = self._parts(record)
        line = {"time": time, "level": record.levelname, "logger": record.name, "message": message, **fields}
        return json.dumps({**line, "exception": error} if error else line, ensure_ascii=False)


class TextFormatter(_Formatter):
    """Formats records as `time LEVEL logger [who] message`, with the exception below."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines."""
        time, message, fields, error = self._parts(record)
        return _line(
            {"time": time, "level": record.levelname, "logger": record.name, "message": message, **fields}, error
        )


class PrintedBytes(io.BufferedIOBase):
    """The byte stream below `PrintedLines`; invalid UTF-8 and split characters appear as escapes."""

    def __init__(self, lines: PrintedLines) -> None:
        """Write the bytes as text of `lines`."""
        self._lines = lines

    def write(self, data: Buffer) -> int:
        """Log all complete lines."""
        self._lines.write(bytes(data).decode(errors="backslashreplace"))
        return memoryview(data).nbytes

    def flush(self) -> None:
        """Log the unfinished line of this thread too."""
        self._lines.flush()

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the descriptor of the replaced stream."""
        return self._lines.fileno()


class PrintedLines(io.TextIOBase):
    """A replacement of stdout or stderr that turns printed lines into records."""

    encoding = "utf-8"

    def __init__(self, name: str, level: int, raw: TextIO) -> None:
        """Replace a stream; `raw` takes lines that are printed while a record is written, such as errors of logging."""
        self._logger, self._level, self._raw = logging.getLogger(name), level, raw
        # per thread, as others print meanwhile
        self._begun = contextvars.ContextVar(f"penstock_begun_{name}", default="")
        self._inside = contextvars.ContextVar(f"penstock_inside_{name}", default=False)

    def write(self, text: str) -> int:
        """Log all complete lines."""
        if self._inside.get():
            return self._raw.write(text)
        *lines, begun = (self._begun.get() + text).split("\n")
        if len(begun) > _LONGEST_LINE:
            lines, begun = [*lines, begun], ""
        self._begun.set(begun)
        self._log(lines)
        return len(text)

    @property
    def buffer(self) -> PrintedBytes:
        """Return the byte stream below."""
        return PrintedBytes(self)

    def reconfigure(self, **settings: object) -> None:
        """Ignore the settings: lines are always logged as they end, in UTF-8."""

    def flush(self) -> None:
        """Log the unfinished line of this thread too."""
        begun = self._begun.get()
        if begun and not self._inside.get():
            self._begun.set("")
            self._log([begun])

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the descriptor of the replaced stream."""
        return self._raw.fileno()

    def _log(self, lines: list[str]) -> None:
        self._inside.set(True)
        try:
            for line in filter(str.strip, lines):
                self._logger.log(self._level, "%s", line)
        finally:
            self._inside.set(False)


def configure_logs(log_format: LogFormat, **fields: str) -> None:
    """Send records from INFO on to stderr in this format, with `fields` on each."""
    stderr, stdout = sys.__stderr__ or sys.stderr, sys.__stdout__ or sys.stdout
    handler = logging.StreamHandler(stderr)
    handler.setFormatter(JsonFormatter(fields) if log_format == "json" else TextFormatter({}))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    # the S3 client's HTTP library reports each retry; the store's own error has the last one
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)
    if log_format == "json":
        sys.stdout = PrintedLines("stdout", logging.INFO, stdout)
        sys.stderr = PrintedLines("stderr", logging.WARNING, stderr)


def log_line(logger: str, text: str, prefix: str = "") -> None:
    """Write a line of the process itself: as it is, or as a record of `logger` if the log has JSON lines."""
    if isinstance(sys.stderr, PrintedLines):
        logging.getLogger(logger).info("%s", text)
        return
    sys.stderr.write(f"{prefix}{redact(text)}\n")
    sys.stderr.flush()


def readable(text: str) -> str:
    """Return a log, or the end of one, with its JSON lines in readable form."""
    if '{"time": ' not in text:
        return text
    return "\n".join(_read(line) for line in text.split("\n"))


def _read(line: str) -> str:
    if not line.startswith('{"time": '):
        return line
    try:
        found = json.loads(line)
    except ValueError:
        return line
    return _line(found, str(found.get("exception", ""))) if {"level", "logger", "message"} <= found.keys() else line


def _line(found: Mapping[str, Any], error: str) -> str:
    who = ""
    if "operator" in found:
        who = f" [{found['operator']} ({found['subtask']})#{found['attempt']}]"
    elif "job_name" in found:
        who = f" [{found['job_name']}]"
    text = f"{found['time']} {found['level']} {found['logger']}{who} {found['message']}"
    return f"{text}\n{error}" if error else text
