"""Finds the lines of `stream.print()` of an embedded job in its workers' logs, for the executor to show."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.graph.job_graph import JobGraph

#: Bytes read at once; the rest follows in the next read.
_MOST_BYTES = 1 << 20


class PrintedRows:
    """The new lines of one job's `print` operators."""

    def __init__(self, directory: Path, graph: JobGraph) -> None:
        """Start at the beginning of the logs; `directory` is that of a local cluster with a folder per TaskManager."""
        self._directory = directory
        operators = [operator for vertex in graph.vertices for operator in vertex.operators]
        self._prefixes = tuple(f"{op.config['name']}> " for op in operators if op.kind == "print")
        self._offsets: dict[Path, int] = {}

    def look(self) -> Iterator[str]:
        """Yield complete new lines, in order within each worker."""
        if not self._prefixes:
            return
        for path in sorted(self._directory.glob("tm-*/logs/*.log")):
            with contextlib.suppress(FileNotFoundError):
                yield from self._new_lines(path)

    def _new_lines(self, path: Path) -> Iterator[str]:
        with path.open("rb") as file:
            file.seek(self._offsets.get(path, 0))
            while data := file.read(_MOST_BYTES):
                whole = data[: data.rfind(b"\n") + 1]
                if not whole:
                    return
                file.seek(len(whole) - len(data), 1)
                self._offsets[path] = file.tell()
                for line in whole.decode(errors="replace").splitlines():
                    if line.startswith(self._prefixes):
                        yield line
