"""The description of a failed subtask: one line, then the frames of the user's code and the row, then all frames.

Used by `task.drive.runtime` and `task.drive.subtask` to fill `TaskState.error` and `.detail`.
"""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.core.errors import ALL_FRAMES, PenstockError, missing_module_hint, misuse_hint
from penstock.core.secrets import redacted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.graph.job_graph import OperatorSpec

_ENGINE = str(Path(__file__).resolve().parents[2])
_LIBRARY_ROOTS = (_ENGINE, *(str(path) for path in map(Path, sysconfig.get_paths().values()) if path.name != "scripts"))
_CONNECTORS = "penstock_connectors"
#: Frames of compiled packages such as pyarrow have the path of a source file that is not installed.
_COMPILED = (".pyx", ".pxi", ".pxd")
_OWN_CODE = "In your code:\n"
#: Frames of the user's code that are shown of a deep recursion.
_MOST_FRAMES = 20
_MAX_DETAIL = 16_000
_MAX_LINE = 2_000
#: Characters of the user's frames, and of the text of the exception.
_MAX_OWN = 4_000


def describe(
    error: BaseException, operator: OperatorSpec | None = None, *, show_values: bool = True
) -> tuple[str, str]:
    """Return one line and the long text of an error; `operator` raised it.

    The long text begins with what a user needs; `show_values`: also rows and values of users' data.
    """
    user = user_frames(error)
    text, hint = str(error), misuse_hint(error) or missing_module_hint(error) if user else ""
    if isinstance(error, PenstockError):
        text, hint = error.message, error.hint
    place = _place(error, operator)
    # The class name precedes a PenstockError too: `core.errors.cause_of` uses it to recognize errors that no
    # restart can resolve.
    line = redacted(f"{type(error).__name__}: {text}", max(0, _MAX_LINE - len(place) - len(hint) - 3)).strip()
    line = " ".join(f"{line}{place}{f' ({hint})' if hint else ''}".split()) or type(error).__name__
    if user and not isinstance(error, PenstockError):
        line = f"{line} (in {user[-1].name}, {Path(user[-1].filename).name}:{user[-1].lineno})"
    own = [*_own_frames(error, user), *(_values(error) if show_values else ())]
    # an error that is meant for users is complete without its frames
    parts = ["".join(own).rstrip(), ALL_FRAMES] if own or isinstance(error, PenstockError) else []
    parts += traceback.format_exception(error)
    return redacted(line, _MAX_LINE), redacted("".join(parts), _MAX_DETAIL)


def _own_frames(error: BaseException, user: list[traceback.FrameSummary]) -> list[str]:
    """Return the frames of the user's code and the exception that it raised, as Python prints them."""
    if not user:
        return []
    lines = traceback.format_list(user)
    if len(lines) > _MOST_FRAMES:
        half = _MOST_FRAMES // 2
        lines[half:-half] = [f"  ... {len(lines) - 2 * half} further frames\n"]
    raised = error.__cause__ if isinstance(error, PenstockError) and error.__cause__ is not None else error
    # neither a generated line of code nor a long text takes the place of the row
    texts = "".join(lines), "".join(traceback.format_exception_only(raised))
    return [_OWN_CODE, *(redacted(text, _MAX_OWN, "...\n") for text in texts)]


def _values(error: BaseException) -> list[str]:
    """Return the row or the values at which an error was raised, if it or one of its causes has any."""
    return next(([f"{e.values}\n"] for e in _causes(error) if isinstance(e, PenstockError) and e.values), [])


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _place(error: BaseException, operator: OperatorSpec | None) -> str:
    """Return the operator of the job file that raised an error, unless its text names it."""
    text = str(error)
    if operator is None or (repr(operator.uid) in text and (not operator.where or ".py:" in text)):
        return ""
    at = f" at {operator.where}" if operator.where else ""
    return f"; operator {operator.uid!r}{at}"


def user_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the frames of an error and its causes that are neither in penstock nor in an installed package."""
    frames: list[traceback.FrameSummary] = []
    for cause in _causes(error):
        found = [frame for frame in traceback.extract_tb(cause.__traceback__) if not is_library_code(frame.filename)]
        frames = found + frames
    return frames


def is_library_code(filename: str) -> bool:
    """Return whether a frame's file belongs to penstock, to Python or to an installed package, not to the user."""
    if filename.startswith("<frozen") or filename.endswith(_COMPILED):
        return True
    if filename.startswith("<"):
        return False
    return str(Path(filename).resolve()).startswith(_LIBRARY_ROOTS) or is_engine(filename)


def is_engine(filename: str) -> bool:
    """Return whether a frame's file is penstock's."""
    if filename.startswith("<"):
        return False
    path = Path(filename).resolve()
    # Connectors may be in a separate source tree next to penstock's.
    return str(path).startswith(_ENGINE) or _CONNECTORS in path.parts
