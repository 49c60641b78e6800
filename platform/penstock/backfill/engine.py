"""The engine interface, which runs the stages of a backfill, and the engine in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Protocol

import msgspec

from penstock.backfill.exchange import COMBINED, NO_EDGE, Packet, marker
from penstock.backfill.stages import Stage, TaskResult, feeds
from penstock.backfill.task import BATCH_ROWS, run_parts, run_source

#: Called with the number of finished tasks and of all tasks.
Progress = Callable[[Stage, int, int], None]


class Engine(Protocol):
    """Runs one stage after the other; it keeps the output of a stage until it is closed."""

    def run(self, stage: Stage, progress: Progress) -> list[TaskResult]:
        """Run all tasks of a stage whose inputs have run; return their results by part.

        Raises:
            PenstockError: a task failed.
        """

    def close(self) -> None:
        """Free the output of stages."""


class LocalEngine:
    """Runs one task after the other in this process, with rows between stages in memory.

    For small histories and tests.
    """

    def __init__(self, batch_rows: int = BATCH_ROWS) -> None:
        """Start without output; a task of a stage with inputs receives `batch_rows` at a time."""
        self._batch_rows = batch_rows
        #: Vertex and edge -> packets of its tasks.
        self._given: dict[tuple[str, int], list[Packet]] = {}

    def run(self, stage: Stage, progress: Progress) -> list[TaskResult]:
        """Run all tasks of a stage; see `Engine`."""
        results: list[TaskResult] = []
        tasks: Sequence[Iterable[Packet]]
        if stage.vertex.is_source:
            tasks = [run_source(stage, number) for number in range(stage.parts)]
        else:
            tasks = [run_parts(stage, self._input(stage), self._batch_rows)]
        for done, task in enumerate(tasks, 1):
            for packet in task:
                if packet.edge == NO_EDGE:
                    results.append(msgspec.msgpack.decode(packet.data, type=TaskResult))
                else:
                    self._given.setdefault((stage.vertex.id, packet.edge), []).append(packet)
            progress(stage, done, len(tasks))
        return sorted(results, key=attrgetter("part"))

    def close(self) -> None:
        """Drop all rows."""
        self._given.clear()

    def _input(self, stage: Stage) -> Iterator[Packet]:
        packets = [marker(part) for part in range(stage.parts)]
        for number, (vertex_id, index) in enumerate(feeds(stage)):
            for more in (0, COMBINED):
                given = self._given.get((vertex_id, index + more), ())
                packets += [replace(packet, edge=number + more) for packet in given]
        return iter(sorted(packets, key=attrgetter("place")))
