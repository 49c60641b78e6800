"""Installs a job's Python requirements once per TaskManager into a folder named after their hash.

Called by the supervisor in a helper thread before a worker of such a job is started. Several TaskManagers may share a
work folder: a lock file lets one install while the others wait. The folder gets its final name only when it is
complete.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from penstock.core.errors import PenstockError

INSTALL_TIMEOUT_SECONDS = 600
_LAST_LINES = 3


class RequirementsError(PenstockError):
    """The requirements of a job could not be installed."""


def environment_key(requirements: Sequence[str]) -> str:
    """Return the folder name: the same for the same requirements and Python version, in any order."""
    text = "\n".join([f"{sys.version_info[0]}.{sys.version_info[1]}", *sorted(set(requirements))])
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def install(requirements: Sequence[str], root: Path, installer: Sequence[str] | None = None) -> Path:
    """Return the folder with `requirements`; install them first if necessary.

    Args:
        requirements: PEP 508 texts.
        root: the TaskManager's folder of environments.
        installer: command to which `--target <folder> <requirements>` is appended; None: uv if available, else pip.

    Raises:
        RequirementsError: the installation failed; the message has the installer's reason.
    """
    folder = root / environment_key(requirements)
    if folder.is_dir():
        return folder
    root.mkdir(parents=True, exist_ok=True)
    with (root / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return folder
        building = root / f"{folder.name}.{os.getpid()}.building"
        shutil.rmtree(building, ignore_errors=True)
        try:
            _run([*(installer or _installer()), "--target", str(building), "--", *requirements])
            building.mkdir(exist_ok=True)
            building.rename(folder)
        finally:
            shutil.rmtree(building, ignore_errors=True)
    return folder


def _installer() -> list[str]:
    uv = shutil.which("uv")
    if uv is not None:
        return [uv, "pip", "install", "--quiet", "--python", sys.executable]
    if importlib.util.find_spec("pip") is None:
        msg = "the job has requirements, but this TaskManager has neither uv nor pip"
        raise RequirementsError(msg, hint="install uv, or pip in Penstock's environment")
    return [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        msg = f"the job's requirements were not installed within {INSTALL_TIMEOUT_SECONDS} s"
        raise RequirementsError(msg, hint="check that the package index is reachable") from error
    except OSError as error:
        msg = f"the installer {command[0]} could not be started: {error}"
        raise RequirementsError(msg) from error
    if done.returncode != 0:
        lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        reason = " | ".join(lines[-_LAST_LINES:]) or f"exit code {done.returncode}"
        msg = f"the job's requirements could not be installed: {reason}"
        raise RequirementsError(msg, hint="check the `requirements` of the job")
