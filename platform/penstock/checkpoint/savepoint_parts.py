"""Divides the copy of a checkpoint to a savepoint into parts, and joins what they wrote; pure.

A part is a manifest with some of the checkpoint's subtasks. The JobManager divides and joins (`SavepointCopy`);
`task.checkpoint.savepoint_copy` writes a part.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.checkpoint.manifest_log import Manifest
from penstock.core.snapshot import SubtaskSnapshot


def split_for_copy(manifest: Manifest, most: int) -> list[Manifest]:
    """Return up to `most` parts of about the same number of bytes; a subtask is in one part.

    The first part has the pending output that no subtask names. Subtasks without files are in no part.
    """
    named = {output.id for subtask in manifest.subtasks for output in subtask.committables}
    rest = tuple(output for output in manifest.pending if output.id not in named)
    sizes = [(_bytes_of(subtask), number) for number, subtask in enumerate(manifest.subtasks)]
    filled = [(size, number) for size, number in sizes if size]
    shares: list[list[int]] = [[] for _ in range(min(most, len(filled)))]
    loads = [0] * len(shares)
    for size, number in sorted(filled, key=lambda item: (-item[0], item[1])):
        least = loads.index(min(loads))
        shares[least].append(number)
        loads[least] += size
    if rest and not shares:
        shares = [[]]
    return [
        msgspec.structs.replace(
            manifest,
            subtasks=tuple(manifest.subtasks[number] for number in sorted(share)),
            pending=rest if place == 0 else (),
        )
        for place, share in enumerate(shares)
    ]


def joined_copy(manifest: Manifest, parts: Sequence[Manifest]) -> Manifest:
    """Return the checkpoint's manifest with the files that its parts have written."""
    subtasks = {(s.vertex_id, s.subtask): s for part in parts for s in part.subtasks}
    outputs = {output.id: output for part in parts for output in part.pending}
    outputs |= {output.id: output for s in subtasks.values() for output in s.committables}
    return msgspec.structs.replace(
        manifest,
        subtasks=tuple(subtasks.get((s.vertex_id, s.subtask), s) for s in manifest.subtasks),
        pending=tuple(outputs.get(output.id, output) for output in manifest.pending),
    )


def _bytes_of(subtask: SubtaskSnapshot) -> int:
    """Return the bytes to copy, and one for each file; 0 if there is none."""
    segments = [segment.file for state in subtask.keyed for segment in state.segments]
    outputs = [ref for output in subtask.committables for ref in output.files]
    return sum(1 + ref.length for ref in (*segments, *outputs))
