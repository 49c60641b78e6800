"""Named failpoints: places in the code where a test may kill, hold or break a process.

Off unless armed by the environment.

`PENSTOCK_FAILPOINTS="name=action[@nth][;name=action...]"` arms points; actions: `kill` (SIGKILL to the process itself),
`hold` (write evidence, then wait until `<dir>/<name>.release` appears or 60 s have passed), `error` (raise
`FailpointError`). `PENSTOCK_FAILPOINT_DIR` is where evidence goes (`<name>.hit`, one JSON line a hit, put in place
before acting). A point acts once per evidence folder, however many processes pass it: the first to create
`<name>.fired` wins.
"""

from __future__ import annotations

import json
import os
import select
import signal
from pathlib import Path

NAMES = frozenset(
    {
        "task.before_ack",
        "task.after_ack",
        "jobmanager.before_manifest",
        "jobmanager.after_manifest",
        "sink.before_publish",
        "sink.between_chunks",
        "sink.after_commit",
        "task.during_restore",
        "jobmanager.before_rescale_record",
        "jobmanager.after_rescale_record",
        "jobmanager.before_upgrade_record",
        "jobmanager.after_upgrade_record",
        "jobmanager.during_rescale",
        "jobmanager.before_stop",
        "jobmanager.during_stop",
        "jobmanager.after_end",
        "segment.upload",
        "airflow.after_submit",
    }
)
_HOLD_STEPS = 1200
_HOLD_STEP_SECONDS = 0.05


class FailpointError(RuntimeError):
    """Raised by an armed failpoint whose action is `error`."""


class _Armed:
    """The points armed in this process, parsed once."""

    def __init__(self) -> None:
        self.directory = Path(os.environ.get("PENSTOCK_FAILPOINT_DIR", "."))
        self.actions: dict[str, tuple[str, int]] = {}
        self.hits: dict[str, int] = {}
        for part in filter(None, os.environ.get("PENSTOCK_FAILPOINTS", "").split(";")):
            name, _, action = part.partition("=")
            verb, _, nth = action.partition("@")
            if name not in NAMES:
                msg = f"unknown failpoint {name!r} in PENSTOCK_FAILPOINTS; known: {', '.join(sorted(NAMES))}"
                raise ValueError(msg)
            self.actions[name] = (verb, int(nth or 1))


_armed: _Armed | None = None


def hit(name: str, **context: object) -> None:
    """Pass the failpoint `name`; `context` (checkpoint id, subtask...) becomes the evidence.

    Free when nothing is armed.
    """
    global _armed  # noqa: PLW0603 - parsed once per process, on first use
    if _armed is None:
        _armed = _Armed()
    if name not in _armed.actions:
        return
    verb, nth = _armed.actions[name]
    _armed.hits[name] = _armed.hits.get(name, 0) + 1
    if _armed.hits[name] < nth or not _claim(_armed.directory, name, context):
        return
    _act(verb, name, _armed.directory)


def reset() -> None:
    """Disarm all points, so that the environment is read again (tests, and after a fork)."""
    global _armed  # noqa: PLW0603
    _armed = None


def _claim(directory: Path, name: str, context: dict[str, object]) -> bool:
    directory.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(directory / f"{name}.fired", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return False
    os.close(descriptor)
    evidence = {"name": name, "pid": os.getpid(), "ppid": os.getppid(), **{k: str(v) for k, v in context.items()}}
    with (directory / f"{name}.hit").open("a", encoding="utf-8") as out:
        out.write(json.dumps(evidence) + "\n")
        out.flush()
        os.fsync(out.fileno())
    return True


def _act(verb: str, name: str, directory: Path) -> None:
    if verb == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif verb == "error":
        msg = f"failpoint {name}"
        raise FailpointError(msg)
    elif verb == "hold":
        release = directory / f"{name}.release"
        for _ in range(_HOLD_STEPS):
            if release.exists():
                return
            select.select([], [], [], _HOLD_STEP_SECONDS)
    else:
        msg = f"unknown failpoint action {verb!r} for {name}"
        raise ValueError(msg)
