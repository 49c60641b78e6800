"""A short folder for unix sockets, whose paths have at most 107 bytes, for any path of the work folder."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "ps-"
_MAX_BASE_BYTES = 60


def make_socket_dir(most_base_bytes: int = _MAX_BASE_BYTES) -> Path:
    """Make a private folder in XDG_RUNTIME_DIR or /tmp; delete those left by killed TaskManagers.

    XDG_RUNTIME_DIR is ignored if its path is longer than `most_base_bytes`.
    """
    base = Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp")  # noqa: S108 - mkdtemp makes it private
    if not base.is_dir() or not os.access(base, os.W_OK) or len(os.fsencode(base)) > most_base_bytes:
        base = Path("/tmp")  # noqa: S108
    _sweep(base)
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=base))


def _sweep(base: Path) -> None:
    for path in base.glob(f"{_PREFIX}*-*"):
        owner = path.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists() and _is_ours(path):
            shutil.rmtree(path, ignore_errors=True)


def _is_ours(path: Path) -> bool:
    try:
        return path.lstat().st_uid == os.getuid()
    except FileNotFoundError:  # another starting TaskManager has deleted it
        return False
