"""Check of non-keyed state: whether an operator restores it, and whether its columns fit.

Pure; used by `graph.state_check` for verdicts, and by `graph.restore_plan`, which gives an operator no state that it
would ignore.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from penstock.core.errors import StateMismatchError
from penstock.core.evolution import MODE, evolve, fits_by_name, shown_by_name
from penstock.core.names import near
from penstock.core.snapshot import OperatorStateSnapshot
from penstock.graph.job_graph import OperatorSpec
from penstock.graph.redistribute import TASK_STATE_PREFIX
from penstock.graph.verdicts import ALLOW, StateVerdict

_WINDOWS = ("window_aggregate", "zoned_window", "window_rows", "processing_window", "session_aggregate")
_JOINS = ("interval_join", "window_join", "window_rows_join", "temporal_join")
_BROADCAST = "broadcast"
#: kind -> names of the non-keyed state that it restores; a function without keys has its own names.
_TAKEN_UP: dict[str, tuple[str, ...]] = {
    "source": ("splits", "watermark"),
    "assign_watermarks": ("watermark",),
    "map_async": ("in-flight",),
    "broadcast_process": (_BROADCAST, "watermark"),
    "window_top": ("top",),
    **dict.fromkeys((*_WINDOWS, *_JOINS, "process", "co_process"), ("watermark",)),
}
_USERS = "plain_process"
#: Names that a function must not give to its own non-keyed state: another kind of operator would restore them as its
#: own.
BUILT_IN = frozenset(name for names in _TAKEN_UP.values() for name in names)
#: State that may be missing without losing rows: a watermark comes again. A function's state of that name has columns.
_NO_LOSS = frozenset({"watermark"})
_SHAPES = {"list": "list by subtask", "union": "union"}


def kept_for(
    operator: OperatorSpec, states: Sequence[tuple[int, OperatorStateSnapshot]], allowed: Collection[str]
) -> list[tuple[int, OperatorStateSnapshot]]:
    """Return the states of a snapshot that an operator restores; `allowed` names state that may be dropped.

    Raises:
        StateMismatchError: a state is not empty, and the operator would ignore it.
    """
    kept = []
    for subtask, state in states:
        if state.name.startswith(TASK_STATE_PREFIX) or _takes_up(operator, state.name):
            kept.append((subtask, state))
        elif _holds([state]) and operator.uid not in allowed and f"{operator.uid}/{state.name}" not in allowed:
            found = _not_taken_up(operator, state.name)
            raise StateMismatchError(found.reason, hint=found.way_out)
    return kept


def judged(operator: OperatorSpec, name: str, parts: Sequence[OperatorStateSnapshot]) -> list[StateVerdict]:
    """Return the verdicts on one state of a snapshot; for broadcast state, one for each of its maps."""
    if not _takes_up(operator, name):
        if _holds(parts):
            return [_not_taken_up(operator, name)]
        return [StateVerdict(uid=operator.uid, state=name, verdict="dropped", reason="it holds no rows")]
    if operator.kind == _USERS:
        return [_evolved(operator, name, parts)]
    if name == _BROADCAST and operator.operator_states:
        return [_broadcast(operator, item) for part in parts for item in part.items]
    return [StateVerdict(uid=operator.uid, state=name, verdict="same")]


def begun(operator: OperatorSpec, held: Mapping[str, Sequence[OperatorStateSnapshot]]) -> list[str]:
    """Return the user's non-keyed states that are not among those `held` (by name) in the snapshot."""
    if not operator.operator_states:
        return []
    known = [*held, *(item["state"] for part in held.get(_BROADCAST, ()) for item in part.items)]
    return [name for name in operator.operator_states if name not in known]


def _takes_up(operator: OperatorSpec, name: str) -> bool:
    return name in (operator.operator_states if operator.kind == _USERS else _TAKEN_UP.get(operator.kind, ()))


def _holds(parts: Sequence[OperatorStateSnapshot]) -> bool:
    return any(part.items and (part.name not in _NO_LOSS or part.schema) for part in parts)


def _not_taken_up(operator: OperatorSpec, name: str) -> StateVerdict:
    uid, way = operator.uid, ALLOW.format(f"{operator.uid}/{name}")
    if operator.kind == _USERS:
        reason = f"the snapshot holds operator state {name!r} of {uid!r}, which no longer declares it"
        way = f"declare it again ({near(name, operator.operator_states)}), or {way}"
    else:
        reason = f"the snapshot holds state {name!r} of {uid!r}, which is now {operator.kind}"
        reason, way = f"{reason} and does not restore state of that name", f"give the operator a new uid, or {way}"
    return StateVerdict(uid=uid, state=name, verdict="blocked", reason=reason, way_out=way)


def _evolved(operator: OperatorSpec, name: str, parts: Sequence[OperatorStateSnapshot]) -> StateVerdict:
    from penstock.core.schema import schema_from_text  # imports Pydantic, which the JobManager seldom needs

    uid, wanted, changes = operator.uid, schema_from_text(operator.operator_states[name]), list[str]()
    mode = (wanted.metadata or {}).get(MODE, b"").decode()
    for saved in {(part.schema, part.mode) for part in parts if part.items}:
        if saved[1] != mode:
            reason = f"state {name!r} of {uid!r} was a {_SHAPES.get(saved[1], saved[1])} and is a {_SHAPES[mode]}"
            way = "declare it as before, or give it another name"
            return StateVerdict(uid=uid, state=name, verdict="blocked", reason=reason, way_out=way)
        try:
            changes += evolve(schema_from_text(saved[0]), wanted).changes
        except StateMismatchError as error:
            reason, way = f"state {name!r} of {uid!r}: {error.message}", error.hint or "give the operator a new uid"
            return StateVerdict(uid=uid, state=name, verdict="blocked", reason=reason, way_out=way)
    return StateVerdict(uid=uid, state=name, verdict="migrates" if changes else "same", reason="; ".join(changes))


def _broadcast(operator: OperatorSpec, item: dict[str, Any]) -> StateVerdict:
    """Judge one map of a broadcast state."""
    import pyarrow as pa

    from penstock.core.schema import schema_from_text

    uid, name, declared = operator.uid, item["state"], operator.operator_states
    if not item["rows"]:
        verdict, reason = ("same", "") if name in declared else ("dropped", "it holds no rows")
        return StateVerdict(uid=uid, state=name, verdict=verdict, reason=reason)  # type: ignore[arg-type]
    way = "or give the operator a new uid"
    if name not in declared:
        reason = f"the snapshot holds broadcast state {name!r} of {uid!r}, which the function does not declare"
        way = f"declare it ({near(name, declared)}), {way}"
        return StateVerdict(uid=uid, state=name, verdict="blocked", reason=reason, way_out=way)
    saved = pa.ipc.open_stream(base64.b64decode(item["rows"])).schema
    wanted = schema_from_text(declared[name])
    if fits_by_name(saved, wanted):
        return StateVerdict(uid=uid, state=name, verdict="same")
    reason = f"broadcast state {name!r} of {uid!r} was saved with ({shown_by_name(saved)})"
    reason = f"{reason}, the job keeps ({shown_by_name(wanted)})"
    way = f"keep the fields of its keys and values, {way}"
    return StateVerdict(uid=uid, state=name, verdict="blocked", reason=reason, way_out=way)
