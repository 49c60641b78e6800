"""Redistribution of non-keyed operator state to a new number of subtasks: `list`, `union` and `subtask` mode.

With an unchanged number of subtasks, `list` and `subtask` keep their subtask. Else `list` goes round robin, and each
subtask gets the element-wise minimum of `subtask` (watermarks). `union` goes to every subtask. The watermark of a
task's input is always the minimum: its inputs may get other splits. The job assigns `split`. Called by
`penstock.graph.restore_plan`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.core.errors import StateMismatchError
from penstock.core.snapshot import OperatorStateSnapshot

#: A state as one old subtask saved it.
SavedState = tuple[int, OperatorStateSnapshot]
#: Prefix of the names of states that belong to the task (its input's watermark), not to an operator.
TASK_STATE_PREFIX = "__"


def redistribute(
    saved: Sequence[SavedState], old_parallelism: int, parallelism: int
) -> list[tuple[OperatorStateSnapshot, ...]]:
    """Return, per new subtask, the states of one operator; `saved` is in the order of old subtasks.

    Raises:
        StateMismatchError: an unknown mode, or watermarks that cannot be merged.
    """
    by_name: dict[tuple[str, str], list[SavedState]] = {}
    for subtask, state in saved:
        by_name.setdefault((state.name, state.mode), []).append((subtask, state))
    parts: list[list[OperatorStateSnapshot]] = [[] for _ in range(parallelism)]
    for (name, mode), states in by_name.items():
        if mode == "split":
            continue
        for subtask, items in enumerate(_items(name, mode, states, (old_parallelism, parallelism))):
            if items:
                first = states[0][1]
                parts[subtask].append(
                    OperatorStateSnapshot(uid=first.uid, name=name, mode=mode, items=items, schema=first.schema)
                )
    return [tuple(part) for part in parts]


def _items(name: str, mode: str, states: Sequence[SavedState], scale: tuple[int, int]) -> list[tuple[Any, ...]]:
    old_parallelism, parallelism = scale
    if mode == "list":
        if old_parallelism == parallelism:  # downstream readers then find their rows at the same subtask, in order
            own = {subtask: state.items for subtask, state in states}
            return [own.get(subtask, ()) for subtask in range(parallelism)]
        everything = [item for _, state in states for item in state.items]
        return [tuple(everything[subtask::parallelism]) for subtask in range(parallelism)]
    if mode == "union":
        union = tuple(item for _, state in states for item in state.items)
        return [union] * parallelism
    if mode == "subtask":
        own = {subtask: state.items for subtask, state in states}
        is_task_state = name.startswith(TASK_STATE_PREFIX)
        if old_parallelism == parallelism and not is_task_state:
            return [own.get(subtask, ()) for subtask in range(parallelism)]
        if len(own) < old_parallelism and is_task_state:
            # a task without a saved watermark had not seen any; an operator without one was idle
            return [()] * parallelism
        return [_minimum(name, list(own.values()))] * parallelism
    msg = f"operator state {name!r} has the unknown mode {mode!r}"
    raise StateMismatchError(msg, hint="a newer version of penstock took the snapshot; restore it with that version")


def _minimum(name: str, rows: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    if len({len(row) for row in rows}) != 1:
        msg = f"operator state {name!r} cannot be merged: its subtasks hold different numbers of watermarks"
        raise StateMismatchError(msg, hint="restore at the parallelism the snapshot was taken at")
    return tuple(_minimum_of(name, column) for column in zip(*rows, strict=True))


def _minimum_of(name: str, values: Sequence[Any]) -> Any:
    """Return the smallest watermark; None (none seen yet) is smaller than any; mappings are merged key by key."""
    if any(value is None for value in values):
        return None
    if all(isinstance(value, dict) for value in values):
        keys = sorted({key for value in values for key in value})
        return {key: _minimum_of(name, [value[key] for value in values if key in value]) for key in keys}
    if all(isinstance(value, (int, float)) for value in values):
        return min(values)
    msg = f"operator state {name!r} cannot be merged: {values!r} are not watermarks"
    raise StateMismatchError(msg, hint="restore at the parallelism the snapshot was taken at")
