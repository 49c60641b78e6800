"""The memory that a TaskManager may use: what is set, else its container's limit, else a part of its host's memory.

Called by `taskmanager.main` at the start. The container's limit is that of the control group (version 1 or 2).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from penstock.config.config_file import TaskManagerSettings

#: The rest of a host's memory is for its system, clients and JobManagers, in percent.
_HOST_PERCENT = 80


@dataclass(frozen=True, slots=True)
class Total:
    """The memory of one TaskManager, and where the figure comes from."""

    size_bytes: int
    origin: str


def total_memory(settings: TaskManagerSettings, host_bytes: int, root: Path = Path("/")) -> Total:
    """Return the memory of a TaskManager on a host with `host_bytes`; `root` holds `/proc` and `/sys`.

    `host_taskmanagers` TaskManagers share what is found; a total that is set is for one of them.
    """
    if settings.memory_bytes is not None:
        return Total(settings.memory_bytes, "taskmanager.memory")
    sharers = max(1, settings.host_taskmanagers)
    shared = f", shared by {sharers} TaskManagers" if sharers > 1 else ""
    limit = container_limit(root)
    if limit is not None and limit < host_bytes:
        return Total(limit // sharers, f"the container's limit{shared}")
    return Total(host_bytes * _HOST_PERCENT // 100 // sharers, f"{_HOST_PERCENT} % of the host's memory{shared}")


def container_limit(root: Path) -> int | None:
    """Return the lowest memory limit of this process's control groups, in bytes; None: there is none."""
    limits = [limit for file in _limit_files(root) if (limit := _limit(file)) is not None]
    return min(limits, default=None)


def _limit_files(root: Path) -> Iterator[Path]:
    """Yield the limit files of the process's groups and of those above.

    In a container, a path may be one of the host that the container does not see; the top one is then its own.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return  # no Linux
    for line in lines:
        hierarchy, controllers, path = line.split(":", 2)
        if hierarchy == "0" and not controllers:
            base, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            base, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        group = PurePosixPath(path.lstrip("/"))
        for place in (group, *group.parents):
            yield base / place / name


def _limit(file: Path) -> int | None:
    try:
        text = file.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None  # `max`: none
