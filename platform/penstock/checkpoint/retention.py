"""Retention: which log entries and files to delete, and orphaned files that no manifest names; pure.

Called by `jobmanager.checkpoints.checkpointing` only after its own append succeeded. Seals stay forever, as they
refuse an old leader.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from penstock.checkpoint.manifest_log import Manifest


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """The files and entries to delete, and the entries that remain."""

    sequences: tuple[int, ...]
    files: tuple[str, ...]
    kept: tuple[Manifest, ...]
    #: Entries of `kept` to rewrite, because they name no files any longer.
    emptied: tuple[Manifest, ...] = ()


def files_of(manifest: Manifest) -> set[str]:
    """Return the paths below the job's folder that a manifest names."""
    found: set[str] = set()
    for part in manifest.subtasks:
        for state in part.keyed:
            found.update(segment.file.path for segment in state.segments)
        found.update(rows.file.path for rows in part.in_flight)
        for output in part.committables:
            found.update(ref.path for ref in output.files)
    for output in manifest.pending:
        found.update(ref.path for ref in output.files)
    return {path for path in found if path and "://" not in path}


def plan_retention(
    history: Sequence[Manifest],
    retained: int,
    *,
    pinned: Collection[int] = (),
    in_use: Iterable[str] = (),
    abandoned: Collection[int] = (),
) -> RetentionPlan:
    """Keep the newest `retained` checkpoints, anything newer, `pinned` entries (sequences) and entries that fence.

    `in_use` are the files of uncommitted output; `abandoned` entries (sequences) are deleted first.
    """
    checkpoints = [m.sequence for m in history if m.kind == "checkpoint" and m.sequence not in abandoned]
    oldest = checkpoints[-max(1, retained)] if len(checkpoints) >= max(1, retained) else -1
    kept: list[Manifest] = []
    emptied: list[Manifest] = []
    dropped: list[int] = []
    needed, files = set(in_use), [files_of(manifest) for manifest in history]
    for index, manifest in enumerate(history):
        wanted = (manifest.sequence >= oldest or manifest.sequence in pinned) and manifest.sequence not in abandoned
        before_seal = index + 1 < len(history) and history[index + 1].kind == "seal"
        if wanted:
            needed |= files[index]
            kept.append(manifest)
        elif manifest.kind == "seal" or before_seal:
            # The entry is kept for its place in the log; its files are deleted.
            kind = "fence" if manifest.kind in ("checkpoint", "savepoint") else manifest.kind
            empty = msgspec.structs.replace(manifest, kind=kind, subtasks=(), pending=())
            kept.append(empty)
            emptied += [empty] if empty != manifest else []
        else:
            dropped.append(manifest.sequence)
    named: set[str] = set().union(*files)
    return RetentionPlan(tuple(dropped), tuple(sorted(named - needed)), tuple(kept), tuple(emptied))


#: Folders below the job's folder that hold files named by manifests.
SWEPT_PREFIXES = ("data/", "pending/", "channels/")


class Sweeper:
    """Remembers the candidates and returns them once after the grace time."""

    def __init__(self, grace_ms: int) -> None:
        """Delete nothing younger than `grace_ms` (seen from the listing)."""
        self._grace_ms = grace_ms
        self._candidates: frozenset[str] = frozenset()
        self._due_ms: int | None = None

    def listed(self, files: Collection[str], named_by: Iterable[Manifest], now_ms: int) -> None:
        """Take a listing made before deployment; `named_by` are all manifests in the log, of every history."""
        named: set[str] = set().union(*(files_of(m) for m in named_by))
        self._candidates = frozenset(f for f in files if f.startswith(SWEPT_PREFIXES)) - named
        self._due_ms = now_ms + self._grace_ms if self._candidates else None

    def appended(self, named_by: Iterable[Manifest], now_ms: int) -> tuple[str, ...]:
        """Return the files that may be deleted; call it after the leader's own append succeeded."""
        if self._due_ms is None or now_ms < self._due_ms:
            return ()
        named: set[str] = set().union(*(files_of(m) for m in named_by))
        gone = tuple(sorted(self._candidates - named))
        self._candidates, self._due_ms = frozenset(), None
        return gone
