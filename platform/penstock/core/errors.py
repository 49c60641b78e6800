"""Errors that a user can act on, and hints for misspelt names.

Raised everywhere; the hints are called where a user's name is looked up.
"""

from __future__ import annotations

import enum
import inspect
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

_OURS = ("penstock", "penstock_connectors", "penstock_airflow")
_LOCATED = re.compile(r"\S+\.py:\d+: ")


def extra_hint(extra: str) -> str:
    """Return the command that installs the packages of an extra; the name `penstock` may be another package's there."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        needed = requires("penstock") or []
    except PackageNotFoundError:  # a checkout that was not installed
        needed = []
    names = [one.partition(";")[0].strip() for one in needed if re.search(rf"extra == ['\"]{extra}['\"]", one)]
    return f"pip install {' '.join(map(repr, names))}" if names else f"install penstock with its extra {extra!r}"


def job_command(command: str, job: str, cluster: str = "") -> str:
    """Return a `penstock` command on a job for a hint; `cluster` is its `--cluster`, empty if it needs none."""
    return shlex.join(["penstock", command, job, *cluster_option(cluster)])


def cluster_option(cluster: str) -> list[str]:
    """Return `--cluster` with its value as arguments; none if the value is empty."""
    return ["--cluster", cluster] if cluster else []


def call_site() -> str:
    """Return `file:line` of the innermost caller outside penstock, or an empty string if there is none."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - a traceback would cost much more, at every call
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] not in _OURS:
            return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def is_located(message: str) -> bool:
    """Return whether a message begins with a place in a job file."""
    return bool(_LOCATED.match(message))


#: Separates what a user needs (own lines, row) from all frames, in the long text of a failure.
ALL_FRAMES = "\n\nAll frames:\n"


def without_all_frames(detail: str) -> str:
    """Return what a user needs of a failure's long text: own lines, the row; empty for any other text."""
    own, found, _ = detail.partition(ALL_FRAMES)
    return own.strip("\n") if found else ""


#: Errors that recur at every attempt, by name: the text of a failure, which other processes get, begins with it.
_PERMANENT = frozenset(
    {
        "UsageError",
        "GraphError",
        "NotFoundError",
        "BadRecordError",
        "FunctionLoadError",
        "StateMismatchError",
        "StateTooLargeError",
        "SnapshotDamagedError",
        "MetadataDamagedError",
        "LostTransactionError",
        "UndecidedOutputError",
        "SinkOverflowError",
        "RecordTooLargeError",
    }
)
#: Errors raised by a user function, about its return value, or about the packages that it requires.
_USER_CODE = frozenset({"UserFunctionError", "ColumnError", "RequirementsError", "SystemExit"})


class Cause(enum.Enum):
    """The class of a failure."""

    #: A process, machine or external system failed; it may be available again.
    TRANSIENT = "transient"
    #: A user function raised. The same input raises again, unless the function depends on an external system.
    USER_CODE = "user code"
    #: Another attempt cannot help.
    PERMANENT = "permanent"

    @staticmethod
    def of(*, permanent: bool) -> Cause:
        """Return PERMANENT or TRANSIENT."""
        return Cause.PERMANENT if permanent else Cause.TRANSIENT


def cause_of(error: str) -> Cause:
    """Return the cause for the error class that the text names."""
    name = error.lstrip().partition(":")[0].strip().rpartition(".")[2]
    if name in _PERMANENT:
        return Cause.PERMANENT
    return Cause.USER_CODE if name in _USER_CODE else Cause.TRANSIENT


class PenstockError(Exception):
    """Base of every error that is meant for a user; `str(error)` is one line."""

    def __init__(self, message: str, *, hint: str = "", values: str = "", cause: Cause | None = None) -> None:
        """Take the message, which names the place and the fault, and a hint, which names a solution.

        `values` are users' data that show the fault, such as the row; a job's setting may suppress them. `cause` is by
        default that of the error's class.
        """
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.values = values
        #: Whether another attempt can succeed.
        self.cause = cause or cause_of(type(self).__name__)

    def __str__(self) -> str:
        """Return message and hint in one line."""
        return f"{self.message} ({self.hint})" if self.hint else self.message


class UsageError(PenstockError):
    """The job or the command is wrong before anything ran; exit code 2."""


class GraphError(UsageError):
    """The stream graph cannot be built: unknown column, missing uid, wrong type."""


class ConnectorError(PenstockError):
    """An outside system refused, is unreachable, or holds data that cannot be read."""


class NoJobManagerError(PenstockError):
    """No JobManager answers or leads at the moment; the same request may succeed later."""


class NotStartedError(PenstockError):
    """The job has not started, so that it takes no request yet; the same request may succeed later."""


class UnreachableError(ConnectorError):
    """An outside system does not answer; the same request may succeed later."""


class BadRecordError(ConnectorError):
    """A record could not be decoded, and the source is configured to fail on it."""

    def __init__(self, message: str, *, hint: str = "", values: str = "", where: str = "", records: int = 1) -> None:
        """`where`: place and fault of the first record alone, by default `message`; `records`: how many were read."""
        super().__init__(message, hint=hint, values=values)
        self.where, self.records = where or message, records


class LostTransactionError(ConnectorError):
    """Output that had to be published can no longer be; names the records, the transaction and the checkpoint."""


class UndecidedOutputError(ConnectorError):
    """It cannot be determined whether pending output was published: its marker has expired."""


class StorageError(PenstockError):
    """The checkpoint store cannot be written or read.

    A store that refuses sets the cause PERMANENT, which ends a command. A running job counts it as transient: its
    operator can grant the access while it restarts.
    """


class SnapshotDamagedError(StorageError):
    """A file of a snapshot is missing or its checksum is wrong; names the file."""


class MetadataDamagedError(SnapshotDamagedError):
    """A log entry, manifest, lease or claim cannot be decoded; names the file. Its job is suspended until it can."""


class LeadershipLostError(PenstockError):
    """A leader of a newer generation has taken over; the caller must stop and delete nothing."""


class JobIdentityError(PenstockError):
    """Another process runs a job under the same checkpoint root and name; names the holder."""


class StateMismatchError(PenstockError):
    """The snapshot's state does not fit the job's graph."""


class StateTooLargeError(PenstockError):
    """Keyed state exceeds the managed memory of its slot; the same input exceeds it again after a restart."""


class JobFailedError(PenstockError):
    """The job ended FAILED; carries the cause of the last failure.

    The lines of the user's code and the row are its note, which Python and pytest print below the message.
    """


def job_failed(name: str, line: str, detail: str, hint: str = "") -> JobFailedError:
    """Return the error of a failed job; `line` and `detail` describe its last failure (`task.chain.failure`)."""
    error = JobFailedError(f"job {name} failed: {line}", hint=hint, cause=cause_of(line))
    own = without_all_frames(detail)
    if own:
        error.add_note(own)
    return error


class SavepointInUseError(UsageError):
    """A job still reads from the savepoint that a user wants to remove; names the job's folder."""


class UnansweredError(PenstockError):
    """The request was accepted and may take effect, but was not durable in time."""


class NotFoundError(PenstockError):
    """No job, checkpoint or savepoint has that id."""


_METHOD = """['"](?:builtin_function_or_)?method['"]"""
#: Python's error about an operation on a method; an argument that is named `method` does not match.
_ON_A_METHOD = re.compile(rf"\b(?:operand|between|not|type)\b.*{_METHOD}|{_METHOD} object")
#: Python's error about `from penstock import Unknown`.
_UNKNOWN_IMPORT = re.compile(r"cannot import name '(\w+)' from 'penstock' ")
#: Python's error about an unknown argument of a function or class.
_UNKNOWN_ARGUMENT = re.compile(r"([\w.]+)\(\) got an unexpected keyword argument '(\w+)'")
#: Python's errors about a missing argument, about arguments without a name, and about the types of a state.
_MISSING_ARGUMENT = re.compile(r"([\w.]+)\(\) missing \d+ required .*?arguments?: '(\w+)'")
_UNNAMED_ARGUMENTS = re.compile(r"(\w+_state)\(\) takes \d+ positional arguments? but")
_STATE_TYPES = re.compile(r"Too (?:few|many) arguments for <class 'penstock\.functions\.\w+\.(\w+State)'>")
#: Python's errors about a default of a state, which has none.
_DEFAULT_OF_STATE = re.compile(
    r"value_state\(\) (?:takes 0 positional arguments but 1 was|got .*'(?:default|initial)\w*')"
)
#: The example in the docstring of a function such as `ps.value_state`.
_STATE_EXAMPLE = re.compile(r"`(\w+: ps\.\w+State\[.*?) = (ps\..*?)`")


#: More names than these hide the nearest one.
_MOST_NAMES = 20


def unknown_name_hint(name: str, known: Iterable[str]) -> str:
    """Return a hint for an unknown name of penstock: of another system's name the way here, else the nearest name."""
    from penstock.core.foreign_names import foreign_hint  # imported only when a name is wrong

    return foreign_hint(name) or did_you_mean(name, known)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint for a misspelt name: the nearest one if there is any, and all valid ones unless they are many."""
    names = list(known)
    close = nearest(name, names)
    if close and len(names) > _MOST_NAMES:
        return f"did you mean {close!r}?"
    shown = ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
    listed = f"there are: {shown}" if names else "there are none"
    return f"did you mean {close!r}? {listed}" if close else listed


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name that resembles `name` most; empty if none does."""
    import difflib  # imported only when a name is wrong

    return next(iter(difflib.get_close_matches(name, list(known), n=1)), "")


def argument_text(value: object) -> str:
    """Return a wrong argument as text for an error: functions and classes by name, never with an address."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if inspect.isroutine(value):
        return f"the function {value.__name__}"
    text = repr(value)
    return f"the {type(value).__name__} {value}" if " at 0x" in text.lower() and str(value) != text else text


def misuse_hint(error: BaseException) -> str:
    """Return a hint for a Python error: an unknown name or argument of penstock, or a method without its call."""
    if isinstance(error, AttributeError) and (fields := _fields_of_row(error.obj)):
        return did_you_mean(str(error.name), fields)
    if isinstance(error, AttributeError) and _module_of(error.obj).startswith("penstock."):
        owner: Any = error.obj
        if isinstance(error.obj, tuple):  # a row; users do not look for `count` and `index` of a named tuple
            hidden = set(dir(tuple)) - set(owner._fields)
            return did_you_mean(str(error.name), [n for n in _public(owner) if n not in hidden])
        return unknown_name_hint(str(error.name), _public(owner))
    if isinstance(error, ImportError) and (found := _UNKNOWN_IMPORT.match(str(error))):
        return unknown_name_hint(found[1], _public(sys.modules["penstock"]))
    if isinstance(error, TypeError) and _ON_A_METHOD.search(str(error)):
        return "a method is used without its call: put () after its name, as in self.state.value()"
    if not isinstance(error, TypeError):
        return ""
    return next((way for text, way in _MISTAKEN_TYPES.items() if text in str(error)), "") or _argument_hint(str(error))


def _fields_of_row(row: Any) -> list[str]:
    """Return the fields of a row whose class is a `ps.Schema`; none of any other object."""
    kind = type(row)
    is_schema = any((base.__module__, base.__name__) == ("penstock.core.schema", "Schema") for base in kind.__mro__)
    return list(kind.model_fields) if is_schema else []


def _module_of(owner: object) -> str:
    """Return the module of a class, or of an object's class."""
    return owner.__module__ if isinstance(owner, type) else type(owner).__module__


def _public(owner: object) -> list[str]:
    return [name for name in dir(owner) if not name.startswith("_")]


#: Parts of Python's errors about a stream, an expression or a time in a wrong place, and the ways out.
_MISTAKEN_TYPES = {
    "Stream' object is not subscriptable": "name a column in an expression: .filter(pl.col('amount') > 5)",
    "Stream' object is not iterable": "a stream has no rows before the job runs: .execute_and_collect(limit=10)",
    "Stream' has no len()": "count rows in the job, for example with ps.count()",
    "the truth value of an Expr is ambiguous": "use &, | and ~ with parentheses, not `and`, `or` and `not`",
    "expression literal for value of type function": "a function of a row is for .map(f)",
    "offset-naive and offset-aware": (
        "datetimes of rows are in UTC: write datetime(..., tzinfo=UTC), and datetime.now(UTC)"
    ),
    "'int' and 'datetime.timedelta'": (
        "ctx.timestamp and the times of timers are microseconds: add 10_000_000 for 10 s"
    ),
}


def _argument_hint(text: str) -> str:
    """Return a hint for Python's error about the arguments of a function, or about the types of a state."""
    if _DEFAULT_OF_STATE.match(text):
        return "value() is None before the first update: write self.count.value() or 0"
    if found := _UNKNOWN_ARGUMENT.match(text):
        parameters = _parameters(found[1])
        return did_you_mean(found[2], parameters) if parameters else ""
    if found := _STATE_TYPES.match(text) or _UNNAMED_ARGUMENTS.match(text):
        return _state_hint(found[1])
    if found := _MISSING_ARGUMENT.match(text):
        if hint := _state_hint(found[1].removesuffix(".__init__")):
            return hint
        parameters = _parameters(found[1])
        return f"add {found[2]}=...; there are: {', '.join(parameters)}" if found[2] in parameters else ""
    return ""


def _state_hint(name: str) -> str:
    """Return the example of a state's class such as `ValueState`, or of its function; empty for any other name."""
    function_name = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
    declare = _of_penstock([function_name]) if function_name.endswith("_state") else None
    example = _STATE_EXAMPLE.search(inspect.getdoc(declare) or "")
    return f"declare a state in this way: {example[1]} = {example[2]}" if example else ""


def missing_module_hint(error: BaseException) -> str:
    """Return a hint for a module that a worker cannot import; empty for any other error."""
    if not isinstance(error, ModuleNotFoundError):
        return ""
    return (
        f"a package: install it in the TaskManagers' Python, {sys.executable}, or name it in"
        " ps.Environment(requirements=[...]); a module of yours: put it beside the job file, or name its folder in"
        " ps.Environment(python_path=[...])"
    )


def _parameters(name: str) -> list[str]:
    """Return the named parameters of a function or class of penstock by its qualified name; empty for any other."""
    found = _of_penstock(name.removesuffix(".__init__").split("."))
    if not callable(found):
        return []
    various = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(found).parameters.items()
    return [name for name, p in parameters if name != "self" and not name.startswith("_") and p.kind not in various]


def _of_penstock(parts: Sequence[str]) -> Any:
    """Return the function, class or method of an imported module of penstock by its qualified name; None if unknown."""
    for module in [m for n, m in list(sys.modules.items()) if n.partition(".")[0] in _OURS]:
        found = vars(module).get(parts[0])
        for part in parts[1:]:
            found = getattr(found, part, None) if isinstance(found, type) else None
        if callable(found):
            return found
    return None
