"""Looks at /proc: which processes descend from which, who lives, who is stopped."""

import os
from pathlib import Path

#: Place of the exit code behind the name of a process in its `stat`.
_EXIT_CODE = 49


def _fields(pid):
    """State and parent of a process, or None when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    parts = text.rpartition(")")[2].split()
    return parts[0], int(parts[1])


def alive(pid):
    """Whether the process exists and is no zombie."""
    found = _fields(pid)
    return found is not None and found[0] != "Z"


def stopped(pid):
    found = _fields(pid)
    return found is not None and found[0] in "Tt"


def ended_by(pid):
    """The signal that has ended a process whose parent does not know it yet; 0: it has exited by itself."""
    status = int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[_EXIT_CODE])
    return status & 0x7F


def parent(pid):
    found = _fields(pid)
    return found[1] if found else 0


def descendants(pid):
    """All live processes below `pid`, itself not included."""
    children = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (found := _fields(entry.name)) is not None:
            children.setdefault(found[1], []).append(int(entry.name))
    found, todo = [], [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return [p for p in found if alive(p)]


def signal_all(pids, number):
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
