"""The logs of the processes: plain lines, or JSON objects one a line, on stderr; called by `cli.serve` and the workers.

Who says something is known by the context it is said in: the scope of a subtask, which `task.drive.subtask` enters at
each step, so that what users' functions log carries job, operator, subtask and attempt. In the format `json` what is
printed becomes such lines too; only what libraries in C write to the descriptor itself does not.
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
#: Characters printed without an end of the line that are a record by themselves.
_LONGEST_LINE = 64 << 10
Fields = Mapping[str, str | int]


class Scope(Protocol):
    """Whose words these are."""

    def fields(self) -> Fields:
        """Return `job`, `operator` and so on, as they are now."""


class FixedScope:
    """One that does not change."""

    def __init__(self, fields: Fields) -> None:
        """Always these."""
        self._fields = fields

    def fields(self) -> Fields:
        """Return them."""
        return self._fields


_scope: contextvars.ContextVar[Scope | None] = contextvars.ContextVar("penstock_log_scope", default=None)
#: From here on this is the scope of this thread, or of this task of an event loop.
enter = _scope.set


def settled_context() -> contextvars.Context:
    """Return a context whose scope is what the present one says now, for work that is done later, elsewhere."""
    context, scope = contextvars.copy_context(), _scope.get()
    if scope is not None:
        context.run(enter, FixedScope(scope.fields()))
    return context


def about(job_id: str, job_name: str) -> dict[str, Fields]:
    """Return the `extra` of a record about a job that no scope tells of."""
    return {"scope": {"job": job_id, "job_name": job_name}}


class _Formatter(logging.Formatter):
    """What both formats have in common: time, fields, exceptions, and no secrets."""

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
    """One JSON object a line: `time`, `level`, `logger`, `message`, what is known of who says it, `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        time, message, fields, error = self._parts(record)
        line = {"time": time, "level": record.levelname, "logger": record.name, "message": message, **fields}
        return json.dumps({**line, "exception": error} if error else line, ensure_ascii=False)


class TextFormatter(_Formatter):
    """`time LEVEL logger [who] message`, and the exception below."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines."""
        time, message, fields, error = self._parts(record)
        return _line(
            {"time": time, "level": record.levelname, "logger": record.name, "message": message, **fields}, error
        )


class PrintedBytes(io.BufferedIOBase):
    """The bytes below `PrintedLines`; what is no UTF-8, or a character in two pieces, is shown as escapes."""

    def __init__(self, lines: PrintedLines) -> None:
        """They become text of `lines`."""
        self._lines = lines

    def write(self, data: Buffer) -> int:
        """Log all complete lines."""
        self._lines.write(bytes(data).decode(errors="backslashreplace"))
        return memoryview(data).nbytes

    def flush(self) -> None:
        """Log the line that this thread has begun too."""
        self._lines.flush()

    def writable(self) -> bool:
        """Yes."""
        return True

    def fileno(self) -> int:
        """Return the descriptor of the stream it stands for."""
        return self._lines.fileno()


class PrintedLines(io.TextIOBase):
    """Stands for stdout or stderr: what is printed becomes records, a line each."""

    encoding = "utf-8"

    def __init__(self, name: str, level: int, raw: TextIO) -> None:
        """`raw`: where lines go while a record is being written, should that fail and be printed."""
        self._logger, self._level, self._raw = logging.getLogger(name), level, raw
        # by thread: others print meanwhile
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
        """The stream of bytes below."""
        return PrintedBytes(self)

    def reconfigure(self, **settings: object) -> None:
        """Change nothing: lines are logged as they end, in UTF-8, whatever is asked for."""

    def flush(self) -> None:
        """Log the line that this thread has begun too."""
        begun = self._begun.get()
        if begun and not self._inside.get():
            self._begun.set("")
            self._log([begun])

    def writable(self) -> bool:
        """Yes."""
        return True

    def fileno(self) -> int:
        """Return the descriptor of the stream it stands for."""
        return self._raw.fileno()

    def _log(self, lines: list[str]) -> None:
        self._inside.set(True)
        try:
            for line in filter(str.strip, lines):
                self._logger.log(self._level, "%s", line)
        finally:
            self._inside.set(False)


def configure_logs(log_format: LogFormat, **fields: str) -> None:
    """Let the records of this process, from INFO on, go to its stderr in this format, with `fields` on each."""
    stderr, stdout = sys.__stderr__ or sys.stderr, sys.__stdout__ or sys.stdout
    handler = logging.StreamHandler(stderr)
    handler.setFormatter(JsonFormatter(fields) if log_format == "json" else TextFormatter({}))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    if log_format == "json":
        sys.stdout = PrintedLines("stdout", logging.INFO, stdout)
        sys.stderr = PrintedLines("stderr", logging.WARNING, stderr)


def say(logger: str, text: str, prefix: str = "") -> None:
    """Write a line of the process's own: as it is, or as a record of `logger` where the log has JSON lines."""
    if isinstance(sys.stderr, PrintedLines):
        logging.getLogger(logger).info("%s", text)
        return
    sys.stderr.write(f"{prefix}{redact(text)}\n")
    sys.stderr.flush()


def readable(text: str) -> str:
    """Return a log, or the end of one, with its JSON lines as people read them."""
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
