"""Check whether a snapshot's state fits a job: a verdict for each state, before anything starts.

Pure; called by `penstock check`, and by the JobManager before a job starts from a savepoint. State that passes is what
`graph.restore_plan` distributes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import msgspec

from penstock.core.aggregate_evolution import evolve_state, require_same_window
from penstock.core.errors import StateMismatchError
from penstock.core.evolution import EVOLVES, MIGRATES, MIGRATES_BY, is_migrated
from penstock.core.join_evolution import require_same_join
from penstock.core.names import near
from penstock.core.snapshot import Committable, OperatorStateSnapshot, SubtaskSnapshot
from penstock.graph.job_graph import JobGraph, OperatorSpec
from penstock.graph.redistribute import TASK_STATE_PREFIX
from penstock.graph.unkeyed_check import begun, judged
from penstock.graph.verdicts import ALLOW, StateVerdict

if TYPE_CHECKING:
    import pyarrow as pa

_KEY_IDS = range(101, 501)


class _Held(msgspec.Struct):
    """The state of one uid: state -> its schema and rows; names of non-keyed state; pending output."""

    keyed: dict[str, tuple[str, int]] = {}
    #: name -> the part of each subtask.
    operator: dict[str, list[OperatorStateSnapshot]] = {}
    unpublished: int = 0


def check_states(
    graph: JobGraph,
    subtasks: Sequence[SubtaskSnapshot],
    *,
    pending: Sequence[Committable] = (),
    allow_non_restored: Collection[str] = (),
    known: Collection[str] = (),
) -> tuple[StateVerdict, ...]:
    """Return a verdict for every state of the snapshot and of the job, by uid.

    `known`: the uids of the snapshot's job. An operator among them without state is not new. `allow_non_restored` names
    state to drop: `uid` (its states that the job does not have) or `uid/state`. Columns are compared where
    `OperatorSpec.states` has them.

    Raises:
        StateMismatchError: `allow_non_restored` names state that the snapshot does not have, or that the job does.
    """
    held = _held(subtasks, pending)
    operators = {operator.uid: operator for vertex in graph.vertices for operator in vertex.operators}
    found: list[StateVerdict] = []
    for uid, left in held.items():
        operator = operators.get(uid)
        found += _gone(uid, left, operators) if operator is None else _kept(operator, left)
    for uid, operator in operators.items():
        if operator.stateful:
            found += _new(operator, held.get(uid, _Held()), was_there=uid in known)
    found = [_allowed(verdict, allow_non_restored) for verdict in found]
    _check_names(allow_non_restored, found)
    return tuple(sorted(found, key=lambda verdict: (verdict.uid, verdict.state)))


def require_fit(verdicts: Sequence[StateVerdict]) -> None:
    """Check that no verdict is blocked.

    Raises:
        StateMismatchError: one is; names the first with its solution, and the number of others.
    """
    blocked = [verdict for verdict in verdicts if verdict.verdict == "blocked"]
    if blocked:
        first, more = blocked[0], len(blocked) - 1
        others = f"; {more} more: {', '.join(verdict.place for verdict in blocked[1:])}" if more else ""
        raise StateMismatchError(f"{first.reason}{others}", hint=first.way_out)


def is_left_behind(operator: OperatorSpec, state: str, allow_non_restored: Collection[str]) -> bool:
    """Return whether a keyed state of an operator of the job is dropped: allowed, and known not to be declared."""
    if not operator.states or state in operator.states:
        return False
    return operator.uid in allow_non_restored or f"{operator.uid}/{state}" in allow_non_restored


def _held(subtasks: Sequence[SubtaskSnapshot], pending: Sequence[Committable]) -> dict[str, _Held]:
    held: dict[str, _Held] = {}
    outputs = {output.id: output for part in subtasks for output in part.committables}
    for part in subtasks:
        for state in part.keyed:
            known = held.setdefault(state.uid, _Held()).keyed
            schema, rows = known.get(state.state, (state.schema, 0))
            known[state.state] = schema, rows + sum(segment.rows for segment in state.segments)
        for other in part.operator:
            if not other.name.startswith(TASK_STATE_PREFIX):
                held.setdefault(other.uid, _Held()).operator.setdefault(other.name, []).append(other)
    for output in {**outputs, **{c.id: c for c in pending}}.values():
        held.setdefault(output.uid, _Held()).unpublished += 1
    return held


def _gone(uid: str, left: _Held, operators: Collection[str]) -> list[StateVerdict]:
    """Judge the states of an operator that the job does not have."""
    found = []
    if left.unpublished:
        reason = f"output of {uid!r} is not published yet, and the job has no sink of that uid"
        way = "give the sink its old uid and delivery back until its output is published"
        found.append(StateVerdict(uid=uid, state="output", verdict="blocked", reason=reason, way_out=way))
    for state in sorted((*left.keyed, *left.operator)):
        reason = f"the snapshot holds state {state!r} of {uid!r}, and the job has no operator of that uid"
        way = f"give the operator its old uid back ({near(uid, operators)}), or {ALLOW.format(uid)}"
        found.append(StateVerdict(uid=uid, state=state, verdict="blocked", reason=reason, way_out=way))
    return found


def _kept(operator: OperatorSpec, left: _Held) -> list[StateVerdict]:
    """Judge the states of an operator that the job has."""
    uid = operator.uid
    found = [verdict for state, parts in left.operator.items() for verdict in judged(operator, state, parts)]
    for state, (schema, rows) in left.keyed.items():
        if not operator.keyed:
            reason = f"{uid!r} had keyed state {state!r}, and is now {operator.kind}, which keeps none"
            way = "give the operator a new uid"
            found.append(StateVerdict(uid=uid, state=state, verdict="blocked", reason=reason, way_out=way))
        elif not operator.states:
            found.append(StateVerdict(uid=uid, state=state, verdict="same", reason="its columns are checked later"))
        elif state in operator.states:
            found.append(_compared(uid, state, schema, operator.states[state]))
        elif rows == 0:
            found.append(StateVerdict(uid=uid, state=state, verdict="dropped", reason="it holds no rows"))
        else:
            what = f"state {state!r} of {uid!r}, which no longer declares it"
            reason = f"the snapshot holds up to {rows:,} rows of {what}"
            way = f"declare it again ({near(state, operator.states)}), or {ALLOW.format(f'{uid}/{state}')}"
            found.append(StateVerdict(uid=uid, state=state, verdict="blocked", reason=reason, way_out=way))
    return found


def _new(operator: OperatorSpec, left: _Held, *, was_there: bool) -> list[StateVerdict]:
    """Return verdicts for state that begins empty; `was_there`: the snapshot's job had the operator."""
    states = [state for state in operator.states if state not in left.keyed]
    states += begun(operator, left.operator)
    if not (operator.states or operator.operator_states or left.keyed or left.operator):
        if was_there:
            return [StateVerdict(uid=operator.uid, state="", verdict="same", reason="it held nothing")]
        states = [""]
    reason = "it reads from its own start" if operator.kind == "source" else "it begins empty"
    return [StateVerdict(uid=operator.uid, state=state, verdict="new", reason=reason) for state in states]


def _compared(uid: str, state: str, saved_text: str, wanted_text: str) -> StateVerdict:
    if saved_text == wanted_text:
        return StateVerdict(uid=uid, state=state, verdict="same")
    from penstock.core.schema import schema_from_text  # imports Pydantic, which the JobManager seldom needs

    saved, wanted = schema_from_text(saved_text), schema_from_text(wanted_text)
    ours, theirs = _keys(wanted), _keys(saved)
    by = None if ours != theirs else _migrated_by(saved, wanted)
    if by is not None:
        return StateVerdict(uid=uid, state=state, verdict="migrates", reason=f"by {by}")
    if ours == theirs and EVOLVES in (wanted.metadata or {}):
        return _evolved(uid, state, saved, wanted)
    if saved.names == wanted.names and saved.types == wanted.types:
        return _same_shape(uid, state, saved, wanted)
    if ours != theirs:
        reason = f"{uid!r} was keyed by ({', '.join(theirs)}), the job keys it by ({', '.join(ours)})"
        way = "key by the old columns and types, or give the operator a new uid"
    else:
        reason = f"state {state!r} of {uid!r} was saved with ({_shown(saved)}), the job keeps ({_shown(wanted)})"
        way = "keep aggregates and state types as they were, or give the operator (or the state) a new name"
    return StateVerdict(uid=uid, state=state, verdict="blocked", reason=reason, way_out=way)


def _same_shape(uid: str, state: str, saved: pa.Schema, wanted: pa.Schema) -> StateVerdict:
    try:
        require_same_join(saved, wanted)
        require_same_window(saved, wanted)
    except StateMismatchError as error:
        reason, way = f"state {state!r} of {uid!r}: {error.message}", error.hint or "give the operator a new uid"
        return StateVerdict(uid=uid, state=state, verdict="blocked", reason=reason, way_out=way)
    return StateVerdict(uid=uid, state=state, verdict="same")


def _evolved(uid: str, state: str, saved: pa.Schema, wanted: pa.Schema) -> StateVerdict:
    try:
        changes = evolve_state(saved, wanted).changes
    except StateMismatchError as error:
        reason = f"state {state!r} of {uid!r}: {error.message}"
        way = error.hint or "give the operator a new uid"
        return StateVerdict(uid=uid, state=state, verdict="blocked", reason=reason, way_out=way)
    return StateVerdict(uid=uid, state=state, verdict="migrates" if changes else "same", reason="; ".join(changes))


def _migrated_by(saved: pa.Schema, wanted: pa.Schema) -> str | None:
    """Return the function that is registered as migration of the saved state, if there is one."""
    from penstock.core.schema import schema_from_text

    migration = (wanted.metadata or {}).get(MIGRATES)
    if migration is None or not is_migrated(saved, wanted, schema_from_text(migration.decode())):
        return None
    by: str = wanted.metadata[MIGRATES_BY].decode()
    return by


def _keys(schema: pa.Schema) -> list[str]:
    return [f"{f.name} {f.type}" for f in schema if int((f.metadata or {}).get(b"id", b"0")) in _KEY_IDS]


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{f.name} {f.type}" for f in schema if int((f.metadata or {}).get(b"id", b"0")) > 100)


def _allowed(verdict: StateVerdict, allowed: Collection[str]) -> StateVerdict:
    named = verdict.uid in allowed or verdict.place in allowed
    droppable = verdict.verdict == "blocked" and "--allow-non-restored-state" in verdict.way_out
    if not named or not droppable:
        return verdict
    return StateVerdict(uid=verdict.uid, state=verdict.state, verdict="dropped", reason="dropped, as requested")


def _check_names(allowed: Collection[str], found: Sequence[StateVerdict]) -> None:
    dropped = [verdict for verdict in found if verdict.verdict == "dropped"]
    for name in allowed:
        if not any(name in (verdict.uid, verdict.place) for verdict in dropped):
            msg = f"--allow-non-restored-state {name}: no state of that name can be dropped"
            raise StateMismatchError(
                msg, hint=f"name only state that the job does not have; {near(name, _droppable(found))}"
            )


def _droppable(found: Sequence[StateVerdict]) -> list[str]:
    return [v.place for v in found if v.verdict == "dropped" or "--allow-non-restored-state" in v.way_out]
