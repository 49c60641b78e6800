"""Class archives: a JVM that maps the archive of its classes starts in half of the time.

Used for the broker (`kafka_local`), and by tests that start Java programs many times.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

#: A JVM with other classes ignores an archive, and says so.
_SILENT = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")


def mapping(archive: Path) -> list[str]:
    """Return the options of a JVM that maps an archive, if there is one."""
    return [f"-XX:SharedArchiveFile={archive}", *_SILENT] if archive.exists() else []


@contextlib.contextmanager
def writing(archive: Path) -> Iterator[list[str]]:
    """Yield the options of a JVM that writes an archive at its end; without an archive JVMs start slower."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    part = archive.with_name(f"{archive.name}.{os.getpid()}")
    yield [f"-XX:ArchiveClassesAtExit={part}", *_SILENT]
    if part.exists():
        part.replace(archive)
