"""Check whether a snapshot's state, keyed and non-keyed, fits a job: a verdict for each state.

Pure; called by `penstock check`, by the JobManager before a job starts, and by `graph.restore_plan`.
"""

from __future__ import annotations

import base64
import shlex
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from penstock.core.errors import StateMismatchError, did_you_mean, nearest
from penstock.core.evolution import (
    EVOLVES,
    KEY_IDS,
    MIGRATES,
    MIGRATES_BY,
    MODE,
    evolve,
    evolve_state,
    field_id,
    fits_by_name,
    is_migrated,
    require_same_join,
    require_same_window,
    shown_by_name,
)
from penstock.core.snapshot import Committable, OperatorStateSnapshot, SubtaskSnapshot
from penstock.core.state_names import shown_name
from penstock.graph.job_graph import JobGraph, OperatorSpec
from penstock.graph.operator_kinds import KINDS, properties_of
from penstock.graph.state_redistribution import TASK_STATE_PREFIX

if TYPE_CHECKING:
    import pyarrow as pa

Verdict = Literal["same", "migrates", "new", "dropped", "blocked"]
#: The solution for a blocked state that may be dropped.
DROP_STATE_HINT = "drop its state with --allow-non-restored-state {}"
_BROADCAST = "broadcast"
#: Its non-keyed state has the names that its function declares.
_USER_FUNCTION = "plain_process"
#: Names that a function must not give to its own non-keyed state: another kind of operator would restore them as its
#: own.
RESERVED_STATE_NAMES = frozenset(name for kind in KINDS.values() for name in kind.restores)
#: State that may be missing without losing rows: a watermark comes again. A function's state of that name has columns.
_RECOVERABLE = frozenset({"watermark"})
#: Number of splits that a message names.
_MOST_SPLITS = 3
_MODE_NAMES = {"list": "list by subtask", "union": "union"}


class StateVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one state."""

    uid: str
    #: Empty: the whole operator.
    state: str = ""
    verdict: Verdict
    reason: str = ""
    #: The solution for a blocked state.
    way_out: str = ""
    #: File and line of the operator in the job file, or of the one that has probably its state.
    where: str = ""

    @property
    def place(self) -> str:
        """Return `uid/state`."""
        return f"{self.uid}/{self.state}" if self.state else self.uid

    @property
    def title(self) -> str:
        """Return `uid/state` with the state's name for users."""
        return f"{self.uid}/{shown_name(self.state)}" if self.state else self.uid


class _SavedState(msgspec.Struct):
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
    saved_by_uid = _saved_states(subtasks, pending)
    operators = {operator.uid: operator for vertex in graph.vertices for operator in vertex.operators}
    found: list[StateVerdict] = []
    renamed = _renamed(operators, saved_by_uid, known)
    for uid, saved_state in saved_by_uid.items():
        operator = operators.get(uid)
        found += _removed(uid, saved_state, renamed.get(uid)) if operator is None else _kept(operator, saved_state)
    old_uids = {operator.uid: uid for uid, operator in renamed.items()}
    for uid, operator in operators.items():
        if operator.stateful:
            started = _new(operator, saved_by_uid.get(uid, _SavedState()), existed=uid in known)
            found += [_with_old_uid(verdict, old_uids.get(uid, "")) for verdict in started]
    found = [_located(_allowed(verdict, allow_non_restored), operators) for verdict in found]
    _check_names(allow_non_restored, found)
    return tuple(sorted(found, key=lambda verdict: (verdict.uid, verdict.state)))


def require_fit(verdicts: Sequence[StateVerdict]) -> None:
    """Check that no verdict is blocked.

    Raises:
        StateMismatchError: one is; names the first with its solution, and the number of others.
    """
    blocked = [verdict for verdict in verdicts if verdict.verdict == "blocked"]
    if blocked:
        first = blocked[0]
        others = [verdict for verdict in blocked if verdict.reason != first.reason]
        more = f"; {len(others)} more: {', '.join(verdict.title for verdict in others)}" if others else ""
        where = f"{first.where}: " if first.where else ""
        raise StateMismatchError(f"{where}{first.reason}{more}", hint=first.way_out)


def require_same_places(graph: JobGraph, subtasks: Sequence[SubtaskSnapshot]) -> None:
    """Check that the sources of a job name the places that they have read in a checkpoint.

    Raises:
        StateMismatchError: one does not; names both places.
    """
    saved_by_uid = _saved_states(subtasks, ())
    operators = [o for vertex in graph.vertices for o in vertex.operators if o.kind == "source"]
    saved = [(o, saved_by_uid.get(o.uid, _SavedState()).operator.get("splits", ())) for o in operators]
    require_fit([_other_place(o, "splits", foreign) for o, parts in saved if (foreign := foreign_splits(o, parts))])


def is_dropped(operator: OperatorSpec, state: str, allow_non_restored: Collection[str]) -> bool:
    """Return whether a keyed state of an operator of the job is dropped: allowed, and known not to be declared."""
    if not operator.states or state in operator.states:
        return False
    names = operator.uid, f"{operator.uid}/{state}", f"{operator.uid}/{shown_name(state)}"
    return any(name in allow_non_restored for name in names)


def _saved_states(subtasks: Sequence[SubtaskSnapshot], pending: Sequence[Committable]) -> dict[str, _SavedState]:
    saved_by_uid: dict[str, _SavedState] = {}
    outputs = {output.id: output for part in subtasks for output in part.committables}
    for part in subtasks:
        for state in part.keyed:
            known = saved_by_uid.setdefault(state.uid, _SavedState()).keyed
            schema, rows = known.get(state.state, (state.schema, 0))
            known[state.state] = schema, rows + sum(segment.rows for segment in state.segments)
        for other in part.operator:
            if not other.name.startswith(TASK_STATE_PREFIX):
                saved_by_uid.setdefault(other.uid, _SavedState()).operator.setdefault(other.name, []).append(other)
    for output in {**outputs, **{c.id: c for c in pending}}.values():
        saved_by_uid.setdefault(output.uid, _SavedState()).unpublished += 1
    return saved_by_uid


def _renamed(
    operators: dict[str, OperatorSpec], saved_by_uid: dict[str, _SavedState], known: Collection[str]
) -> dict[str, OperatorSpec]:
    """Return, by the uid of an operator that the job does not have, the new operator that probably is the same one."""
    new = {
        uid: operator
        for uid, operator in operators.items()
        if operator.stateful and uid not in saved_by_uid and uid not in known
    }
    found = {}
    for uid, saved_state in saved_by_uid.items():
        if uid in operators:
            continue
        alike = [other for other, operator in new.items() if saved_state.keyed.keys() & operator.states.keys()]
        close = nearest(uid, new) or (alike[0] if len(alike) == 1 else "")
        if close:
            found[uid] = new[close]
    return found


def _with_old_uid(verdict: StateVerdict, old_uid: str) -> StateVerdict:
    if not old_uid:
        return verdict
    return msgspec.structs.replace(verdict, reason=f"{verdict.reason}; did it have the uid {old_uid!r}?")


def _located(verdict: StateVerdict, operators: dict[str, OperatorSpec]) -> StateVerdict:
    if verdict.where or verdict.uid not in operators:
        return verdict
    return msgspec.structs.replace(verdict, where=operators[verdict.uid].where)


def _removed(uid: str, saved_state: _SavedState, renamed: OperatorSpec | None) -> list[StateVerdict]:
    """Judge the states of an operator that the job does not have; `renamed`: one that probably is the same."""
    found = []
    if saved_state.unpublished:
        reason = f"output of {uid!r} is not published yet, and the job has no sink of that uid"
        way = "give the sink its old uid and delivery back until its output is published"
        found.append(StateVerdict(uid=uid, state="output", verdict="blocked", reason=reason, way_out=way))
    for state in sorted((*saved_state.keyed, *saved_state.operator)):
        reason = f"the snapshot has state of operator {uid!r}, and the job has no operator with this uid"
        back = f"add .uid({uid!r}) to its operator" if renamed is None else f"change the uid {renamed.uid!r} back"
        way = f"{back}, or {DROP_STATE_HINT.format(uid)}"
        where = "" if renamed is None else renamed.where
        verdict = StateVerdict(uid=uid, state=state, verdict="blocked", reason=reason, way_out=way, where=where)
        found.append(verdict)
    return found


def _kept(operator: OperatorSpec, saved_state: _SavedState) -> list[StateVerdict]:
    """Judge the states of an operator that the job has."""
    uid = operator.uid
    found = [
        verdict for state, parts in saved_state.operator.items() for verdict in unkeyed_verdicts(operator, state, parts)
    ]
    for state, (schema, rows) in saved_state.keyed.items():
        if not operator.keyed:
            reason = f"{uid!r} had keyed state {shown_name(state)!r}, and is now {operator.kind}, which keeps none"
            way = "give the operator a new uid"
            found.append(StateVerdict(uid=uid, state=state, verdict="blocked", reason=reason, way_out=way))
        elif not operator.states:
            found.append(StateVerdict(uid=uid, state=state, verdict="same", reason="its columns are checked later"))
        elif state in operator.states:
            found.append(_compared(uid, state, schema, operator.states[state]))
        elif rows == 0:
            found.append(StateVerdict(uid=uid, state=state, verdict="dropped", reason="it holds no rows"))
        else:
            what = f"state {shown_name(state)!r} of {uid!r}, which no longer declares it"
            reason = f"the snapshot holds up to {rows:,} rows of {what}"
            drop = DROP_STATE_HINT.format(shlex.quote(f"{uid}/{shown_name(state)}"))
            way = f"declare it again ({did_you_mean(state, operator.states)}), or {drop}"
            found.append(StateVerdict(uid=uid, state=state, verdict="blocked", reason=reason, way_out=way))
    return found


def _new(operator: OperatorSpec, saved_state: _SavedState, *, existed: bool) -> list[StateVerdict]:
    """Return verdicts for state that begins empty; `existed`: the snapshot's job had the operator."""
    states = [state for state in operator.states if state not in saved_state.keyed]
    states += new_unkeyed_states(operator, saved_state.operator)
    if not (operator.states or operator.operator_states or saved_state.keyed or saved_state.operator):
        if existed:
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
        columns = f"was saved with ({_shown(saved)}), the job keeps ({_shown(wanted)})"
        reason = f"state {shown_name(state)!r} of {uid!r} {columns}"
        way = "keep aggregates and state types as they were, or give the operator (or the state) a new name"
    return StateVerdict(uid=uid, state=state, verdict="blocked", reason=reason, way_out=way)


def _same_shape(uid: str, state: str, saved: pa.Schema, wanted: pa.Schema) -> StateVerdict:
    try:
        require_same_join(saved, wanted)
        require_same_window(saved, wanted)
    except StateMismatchError as error:
        reason = f"state {shown_name(state)!r} of {uid!r}: {error.message}"
        way = error.hint or "give the operator a new uid"
        return StateVerdict(uid=uid, state=state, verdict="blocked", reason=reason, way_out=way)
    return StateVerdict(uid=uid, state=state, verdict="same")


def _evolved(uid: str, state: str, saved: pa.Schema, wanted: pa.Schema) -> StateVerdict:
    try:
        changes = evolve_state(saved, wanted).changes
    except StateMismatchError as error:
        reason = f"state {shown_name(state)!r} of {uid!r}: {error.message}"
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
    return [f"{f.name} {f.type}" for f in schema if field_id(f) in KEY_IDS]


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{f.name} {f.type}" for f in schema if field_id(f) >= KEY_IDS.start)


def _allowed(verdict: StateVerdict, allowed: Collection[str]) -> StateVerdict:
    named = any(name in allowed for name in (verdict.uid, verdict.place, verdict.title))
    droppable = verdict.verdict == "blocked" and "--allow-non-restored-state" in verdict.way_out
    if not named or not droppable:
        return verdict
    return StateVerdict(uid=verdict.uid, state=verdict.state, verdict="dropped", reason="dropped, as requested")


def _check_names(allowed: Collection[str], found: Sequence[StateVerdict]) -> None:
    dropped = [verdict for verdict in found if verdict.verdict == "dropped"]
    for name in allowed:
        if not any(name in (verdict.uid, verdict.place, verdict.title) for verdict in dropped):
            msg = f"--allow-non-restored-state {name}: no state of that name can be dropped"
            raise StateMismatchError(
                msg, hint=f"name only state that the job does not have; {did_you_mean(name, _droppable(found))}"
            )


def _droppable(found: Sequence[StateVerdict]) -> list[str]:
    return [v.title for v in found if v.verdict == "dropped" or "--allow-non-restored-state" in v.way_out]


def restorable_states(
    operator: OperatorSpec, states: Sequence[tuple[int, OperatorStateSnapshot]], allowed: Collection[str]
) -> list[tuple[int, OperatorStateSnapshot]]:
    """Return the states of a snapshot that an operator restores; `allowed` names state that may be dropped.

    Raises:
        StateMismatchError: a state is not empty, and the operator would ignore it.
    """
    kept = []
    for subtask, state in states:
        if state.name.startswith(TASK_STATE_PREFIX) or _restores(operator, state.name):
            kept.append((subtask, state))
        elif _has_rows([state]) and operator.uid not in allowed and f"{operator.uid}/{state.name}" not in allowed:
            found = _ignored_state(operator, state.name)
            raise StateMismatchError(found.reason, hint=found.way_out)
    return kept


def drops_splits(operator: OperatorSpec, allowed: Collection[str]) -> bool:
    """Return whether a source drops the splits of places that it does not name any more."""
    return operator.kind == "source" and (operator.uid in allowed or f"{operator.uid}/splits" in allowed)


def foreign_splits(operator: OperatorSpec, parts: Sequence[OperatorStateSnapshot]) -> tuple[str, ...]:
    """Return the ids of a source's splits that are not of the places that it names now."""
    patterns = (operator.config.get("source") or {}).get("split_ids", ())
    if not patterns:
        return ()
    ids = {str(item["id"]) for part in parts if part.name == "splits" for item in part.items}
    return tuple(sorted(id_ for id_ in ids if not any(fnmatchcase(id_, pattern) for pattern in patterns)))


def _other_place(operator: OperatorSpec, name: str, foreign: Sequence[str]) -> StateVerdict:
    more = f" and {len(foreign) - _MOST_SPLITS} more" if len(foreign) > _MOST_SPLITS else ""
    place = operator.config["source"].get("place") or "another place"
    reason = f"source {operator.uid!r} has read {', '.join(foreign[:_MOST_SPLITS])}{more}, and now names {place}"
    drop = f"drop its old positions with --allow-non-restored-state {operator.uid}/{name}"
    way = f"name the old place too, give the source a new uid, or {drop}"
    return StateVerdict(uid=operator.uid, state=name, verdict="blocked", reason=reason, way_out=way)


def unkeyed_verdicts(operator: OperatorSpec, name: str, parts: Sequence[OperatorStateSnapshot]) -> list[StateVerdict]:
    """Return the verdicts on one state of a snapshot; for broadcast state, one for each of its maps."""
    if not _restores(operator, name):
        if _has_rows(parts):
            return [_ignored_state(operator, name)]
        return [StateVerdict(uid=operator.uid, state=name, verdict="dropped", reason="it holds no rows")]
    if operator.kind == "source" and (foreign := foreign_splits(operator, parts)):
        return [_other_place(operator, name, foreign)]
    if operator.kind == _USER_FUNCTION:
        return [_evolved_unkeyed(operator, name, parts)]
    if name == _BROADCAST and operator.operator_states:
        return [_broadcast(operator, item) for part in parts for item in part.items]
    return [StateVerdict(uid=operator.uid, state=name, verdict="same")]


def new_unkeyed_states(operator: OperatorSpec, held: Mapping[str, Sequence[OperatorStateSnapshot]]) -> list[str]:
    """Return the user's non-keyed states that are not among those `held` (by name) in the snapshot."""
    if not operator.operator_states:
        return []
    known = [*held, *(item["state"] for part in held.get(_BROADCAST, ()) for item in part.items)]
    return [name for name in operator.operator_states if name not in known]


def _restores(operator: OperatorSpec, name: str) -> bool:
    declared = operator.kind == _USER_FUNCTION
    return name in (operator.operator_states if declared else properties_of(operator.kind).restores)


def _has_rows(parts: Sequence[OperatorStateSnapshot]) -> bool:
    return any(part.items and (part.name not in _RECOVERABLE or part.schema) for part in parts)


def _ignored_state(operator: OperatorSpec, name: str) -> StateVerdict:
    uid, way = operator.uid, DROP_STATE_HINT.format(f"{operator.uid}/{name}")
    if operator.kind == _USER_FUNCTION:
        reason = f"the snapshot holds operator state {name!r} of {uid!r}, which no longer declares it"
        way = f"declare it again ({did_you_mean(name, operator.operator_states)}), or {way}"
    else:
        reason = f"the snapshot holds state {name!r} of {uid!r}, which is now {operator.kind}"
        reason, way = f"{reason} and does not restore state of that name", f"give the operator a new uid, or {way}"
    return StateVerdict(uid=uid, state=name, verdict="blocked", reason=reason, way_out=way)


def _evolved_unkeyed(operator: OperatorSpec, name: str, parts: Sequence[OperatorStateSnapshot]) -> StateVerdict:
    from penstock.core.schema import schema_from_text  # imports Pydantic, which the JobManager seldom needs

    uid, wanted, changes = operator.uid, schema_from_text(operator.operator_states[name]), list[str]()
    mode = (wanted.metadata or {}).get(MODE, b"").decode()
    for saved in {(part.schema, part.mode) for part in parts if part.items}:
        if saved[1] != mode:
            reason = (
                f"state {name!r} of {uid!r} was a {_MODE_NAMES.get(saved[1], saved[1])} and is a {_MODE_NAMES[mode]}"
            )
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
        way = f"declare it ({did_you_mean(name, declared)}), {way}"
        return StateVerdict(uid=uid, state=name, verdict="blocked", reason=reason, way_out=way)
    saved = pa.ipc.open_stream(base64.b64decode(item["rows"])).schema
    wanted = schema_from_text(declared[name])
    if fits_by_name(saved, wanted):
        return StateVerdict(uid=uid, state=name, verdict="same")
    reason = f"broadcast state {name!r} of {uid!r} was saved with ({shown_by_name(saved)})"
    reason = f"{reason}, the job keeps ({shown_by_name(wanted)})"
    way = f"keep the fields of its keys and values, {way}"
    return StateVerdict(uid=uid, state=name, verdict="blocked", reason=reason, way_out=way)
