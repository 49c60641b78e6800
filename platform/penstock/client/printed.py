"""Lines of `stream.print()` where an embedded job runs: found in the logs of its workers, shown by the executor."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.graph.job_graph import JobGraph

#: Read at once; what is longer comes with the next look.
_MOST_BYTES = 1 << 20


class PrintedRows:
    """The lines that the `print` operators of one job have written since the last look."""

    def __init__(self, directory: Path, graph: JobGraph) -> None:
        """`directory` is that of a local cluster, where each TaskManager has its folder."""
        self._directory = directory
        operators = [operator for vertex in graph.vertices for operator in vertex.operators]
        self._prefixes = tuple(f"{op.config['name']}> " for op in operators if op.kind == "print")
        self._offsets: dict[Path, int] = {}

    def look(self) -> Iterator[str]:
        """Return whole new lines, those of one worker in their order."""
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
