"""A bounded event log of a decider's inputs and decisions.

The source of `penstock story` and of error messages with a history.
"""

from __future__ import annotations

import heapq
import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from penstock.core.clock import duration_text
from penstock.core.structs import prepare

#: The text of a periodic checkpoint, and the least number of them that become one entry.
_COMPLETED = re.compile(r"checkpoint (\d+) completed\b")
_LEAST_SERIES = 3
#: Kinds that repeat; kept apart so that they do not displace decisions.
ROUTINE = frozenset({"checkpoint"})


@dataclass(frozen=True, slots=True)
class Entry:
    """One decision: wall milliseconds, a short kind, a sentence."""

    at_ms: int
    kind: str
    text: str
    #: Generation of the leader that decided it; 0: the present one.
    generation: int = 0
    #: In entries derived from the manifest log: the id of their job. Otherwise empty: the log's own job.
    job_id: str = ""


prepare(Entry)


class EventLog:
    """The last `limit` decisions and the last `limit` routine entries, oldest first."""

    def __init__(self, limit: int = 500) -> None:
        """Keep at most `limit` entries of either kind."""
        self._decisions: deque[tuple[int, Entry]] = deque(maxlen=limit)
        self._routine: deque[tuple[int, Entry]] = deque(maxlen=limit)
        #: Number of entries so far.
        self.added = 0
        #: Entries about earlier leaders and earlier jobs of the name, derived from the manifest log.
        self.earlier: tuple[Entry, ...] = ()
        #: Number of entries so far that are not routine.
        self.decided = 0

    def add(self, at_ms: int, kind: str, text: str) -> None:
        """Append an entry; drop the oldest of the same class (routine or not) when full."""
        self.added += 1
        routine = kind in ROUTINE
        self.decided += not routine
        (self._routine if routine else self._decisions).append((self.added, Entry(at_ms, kind, text)))

    def entries(self) -> tuple[Entry, ...]:
        """Return the entries, oldest first."""
        return tuple(entry for _, entry in heapq.merge(self._decisions, self._routine, key=lambda pair: pair[0]))

    def since(self, decided: int) -> tuple[Entry, ...]:
        """Return the entries that are not routine and were added after the first `decided` of them."""
        count = min(self.decided - decided, len(self._decisions))
        return tuple(entry for _, entry in list(self._decisions)[len(self._decisions) - count :])

    def tail(self, count: int = 20) -> str:
        """Return the last `count` entries as text, for an error message."""
        return "\n".join(f"{e.at_ms} {e.kind}: {e.text}" for e in self.entries()[-count:])


def merge_event_logs(recorded: Iterable[Entry], log: Iterable[Entry], own: Iterable[Entry]) -> tuple[Entry, ...]:
    """Return one event log of the entries that earlier leaders wrote, those of the manifest log, and `own`."""
    merged = list(recorded)
    known = {(entry.generation, entry.kind, entry.text) for entry in merged}
    merged += [entry for entry in log if (entry.generation, entry.kind, entry.text) not in known]
    return (*sorted(merged, key=lambda entry: (entry.generation, entry.at_ms)), *own)


def condensed(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return entries in the form of REST, with one for each series of completed checkpoints of a job and leader."""
    shown: list[dict[str, Any]] = []
    for (_, _, routine), group in groupby(entries, _series):
        series = list(group)
        if not routine or len(series) < _LEAST_SERIES:
            shown += series
            continue
        first, last = (_COMPLETED.match(entry["text"]) for entry in (series[0], series[-1]))
        span = duration_text(series[-1]["at_ms"] - series[0]["at_ms"])
        text = f"checkpoints {first and first[1]} to {last and last[1]} completed, {len(series)} in {span}"
        shown.append({**series[0], "text": text})
    return shown


def _series(entry: dict[str, Any]) -> tuple[str, int, bool]:
    routine = entry["kind"] == "checkpoint" and _COMPLETED.match(entry["text"]) is not None
    return entry["job_id"], entry["generation"], routine
