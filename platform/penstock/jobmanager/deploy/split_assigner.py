"""Which subtask of a source reads which split; pure.

`Deployment` makes one for each source: from the restored splits, or from the first discovery of its enumerator. New
splits, such as new partitions of a Kafka topic, go to the subtask with the fewest.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Any

#: A split as builtin types, with at least an `id`.
Split = dict[str, Any]


class SplitAssigner:
    """The splits of one source over `parallelism` subtasks."""

    def __init__(self, parallelism: int, *, bounded: bool, restored: Iterable[Split] | None) -> None:
        """Take the restored splits; with None (a first start) `complete` is False until the first discovery."""
        self._bounded = bounded
        self._owned: list[list[str]] = [[] for _ in range(parallelism)]
        self._owner: dict[str, int] = {}
        self.complete = restored is not None
        self._unsent: dict[int, list[Split]] = {i: [] for i in range(parallelism)}
        self._notified: set[int] = set()
        if restored is not None:
            self._add(restored)

    @classmethod
    def of_running(cls, owned: Sequence[Iterable[str]], *, bounded: bool) -> SplitAssigner:
        """Return the assigner of a running source; `owned`: ids of the splits that each subtask has."""
        assigner = cls(len(owned), bounded=bounded, restored=())
        for subtask, ids in enumerate(owned):
            assigner._owned[subtask] = list(ids)
            assigner._owner.update(dict.fromkeys(ids, subtask))
            assigner._notified.add(subtask)
        return assigner

    @property
    def known(self) -> frozenset[str]:
        """Ids of all splits ever assigned."""
        return frozenset(self._owner)

    @property
    def no_more(self) -> bool:
        """Whether the source is bounded and all its splits are known."""
        return self._bounded and self.complete

    def discovered(self, splits: Iterable[Split]) -> None:
        """Add the enumerator's answer; known ids are ignored."""
        self._add(splits)
        self.complete = True

    def take(self) -> dict[int, tuple[tuple[Split, ...], bool]]:
        """Return the assignments to send now: subtask -> (splits, whether these are the last ones).

        Every subtask gets at least one assignment, even an empty one: only then does it know that it is idle or
        finished.
        """
        if not self.complete:
            return {}
        messages: dict[int, tuple[tuple[Split, ...], bool]] = {}
        for subtask, splits in self._unsent.items():
            if splits or subtask not in self._notified:
                messages[subtask] = (tuple(splits), self.no_more)
                self._notified.add(subtask)
        self._unsent = {subtask: [] for subtask in self._unsent}
        return messages

    def _add(self, splits: Iterable[Split]) -> None:
        # Finished splits last: they cost nothing and must not affect the distribution of the live ones.
        fresh = {s["id"]: s for s in splits if s["id"] not in self._owner}
        fewest = [(len(owned), subtask) for subtask, owned in enumerate(self._owned)]
        heapq.heapify(fewest)
        for split in sorted(fresh.values(), key=lambda s: (bool(s.get("finished")), _order(s["id"]))):
            owned, subtask = fewest[0]
            heapq.heapreplace(fewest, (owned + 1, subtask))
            self._owned[subtask].append(split["id"])
            self._owner[split["id"]] = subtask
            self._unsent[subtask].append(split)


def _order(split_id: str) -> tuple[str, int]:
    """Return a sort key that puts `topic-9` before `topic-10`."""
    prefix, _, number = split_id.rpartition("-")
    return (prefix, int(number)) if number.isdigit() else (split_id, 0)
