"""The description of a failed subtask: one line, then the frames of the user's code, then all frames.

Used by `task.drive.runtime` and `task.drive.subtask` to fill `TaskState.error` and `.detail`.
"""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.core.errors import ALL_FRAMES, PenstockError, missing_module_hint, misuse_hint
from penstock.core.secrets import redact

if TYPE_CHECKING:
    from penstock.graph.job_graph import OperatorSpec

_ENGINE = str(Path(__file__).resolve().parents[2])
_LIBRARY_ROOTS = (_ENGINE, *(str(path) for path in map(Path, sysconfig.get_paths().values()) if path.name != "scripts"))
_CONNECTORS = "penstock_connectors"
_MAX_DETAIL = 16_000
_MAX_LINE = 2_000


def describe(error: BaseException, operator: OperatorSpec | None = None) -> tuple[str, str]:
    """Return one line and the long text of an error; `operator` raised it."""
    user = user_frames(error)
    text, hint = str(error), misuse_hint(error) or missing_module_hint(error) if user else ""
    if isinstance(error, PenstockError):
        text, hint = error.message, error.hint
    place = _place(error, operator)
    # The class name precedes a PenstockError too: `jobmanager.deploy.failover` uses it to recognize errors that no
    # restart can resolve.
    line = f"{type(error).__name__}: {text}"[: _MAX_LINE - len(place) - len(hint) - 3].strip()
    line = " ".join(f"{line}{place}{f' ({hint})' if hint else ''}".split()) or type(error).__name__
    if user and not isinstance(error, PenstockError):
        line = f"{line} (in {user[-1].name}, {Path(user[-1].filename).name}:{user[-1].lineno})"
    parts = []
    if user:
        parts += ["In your code:\n", *traceback.format_list(user), f"{type(error).__name__}: {error}{ALL_FRAMES}"]
    parts += traceback.format_exception(error)
    return redact(line)[:_MAX_LINE], redact("".join(parts)[:_MAX_DETAIL])


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
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        found = [frame for frame in traceback.extract_tb(current.__traceback__) if not is_library_code(frame.filename)]
        frames = found + frames
        current = current.__cause__ or current.__context__
    return frames


def is_library_code(filename: str) -> bool:
    """Return whether a frame's file belongs to penstock, to Python or to an installed package, not to the user."""
    if filename.startswith("<frozen"):
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
