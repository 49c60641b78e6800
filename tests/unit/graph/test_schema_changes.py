"""Every change of a state's declaration with its verdict, as docs/how-to/evolve-state.md lists them.

A row of the page is a case here, under its own words; what becomes of the rows is shown by the tests of each state.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pytest

import penstock as ps
from penstock.api.building.flow import Flow
from penstock.api.functions.process_functions import compile_plain_process, compile_process
from penstock.api.functions.process_states import _state
from penstock.api.streams import DataStream, KeyedStream
from penstock.config.settings import JobSettings
from penstock.core.errors import GraphError, StateMismatchError
from penstock.core.keygroup import HASH_MAX, HASH_MIN
from penstock.core.schema import schema_from_text, schema_to_text
from penstock.core.snapshot import FileRef, KeyedStateSnapshot, OperatorStateSnapshot, Segment, SubtaskSnapshot
from penstock.graph.job_graph import JobGraph, JobVertex, OperatorSpec
from penstock.graph.restore_plan import assign_state
from penstock.graph.state_check import check_states
from penstock.operators.process.broadcast_binding import BoundBroadcast
from penstock.operators.process.state_binding import StateConfig, StateTypes
from penstock.snapshots.access.declared import declared_states

INPUT = pa.schema([pa.field("k", pa.int64()), pa.field("text", pa.string())])
SEGMENT = Segment(
    file=FileRef(inline=b"x"), position=1, writer="w", rows=3, hash_min=0, hash_max=1, namespace_min=0, namespace_max=0
)


class Out(NamedTuple):
    v: int


class Rule(NamedTuple):
    user: int
    most: int


class Longer(NamedTuple):
    user: int
    most: int
    least: int = 0


class OtherDefault(NamedTuple):
    user: int
    most: int
    least: int = 1


class MayBeNone(NamedTuple):
    user: int
    most: int
    least: int | None


class NoDefault(NamedTuple):
    user: int
    most: int
    least: int


class Shorter(NamedTuple):
    user: int


class Swapped(NamedTuple):
    most: int
    user: int


class Renamed(NamedTuple):
    user: int
    limit: int


class RenamedAndNew(NamedTuple):
    user: int
    limit: int
    most: int = 0


class Text(NamedTuple):
    user: int
    most: str


def text_of(old):
    return Text(old["user"], str(old["most"]))


def made(base, declared, compiled):
    """Return the operator of a function that declares these states: name -> (annotation, declaration)."""

    def process(self, row, ctx) -> Iterator[Out]:
        return iter(())

    body = {name: state for name, (_, state) in declared.items()}
    annotations = {name: kind for name, (kind, _) in declared.items()}
    function = type("Keeps", (base,), {**body, "process": process, "__annotations__": annotations})()
    found = compiled(function)
    return msgspec.structs.replace(found.spec, uid="fn", output_schema=schema_to_text(found.schema))


def by_key(key="k", **declared):
    """Return the operator of a function by key, with what it declares."""
    stream = KeyedStream(None, Flow(upstreams=(), schema=INPUT), (key,))
    spec = made(ps.KeyedProcessFunction, declared, lambda function: compile_process(function, None, {}, stream=stream))
    states = declared_states(spec, (INPUT,), JobSettings())
    return msgspec.structs.replace(spec, states={name: schema_to_text(schema) for name, schema in states.items()})


def plain(**declared):
    """Return the operator of a function without keys."""
    stream = DataStream(None, Flow(upstreams=(), schema=INPUT))
    return made(ps.ProcessFunction, declared, lambda function: compile_plain_process(function, None, {}, stream=stream))


def by_rule(**kinds):
    """Return the operator of a function with these broadcast states."""
    declared = {name: _state(name, ps.broadcast_state(), kind, "process(F)") for name, kind in kinds.items()}
    saved = {name: state.saved for name, state in declared.items()}
    return OperatorSpec(uid="fn", name="fn", kind="broadcast_process", stateful=True, operator_states=saved)


def value(kind, key="k", **more):
    return by_key(key, s=(ps.ValueState[kind], ps.value_state(**more)))


def a_list(kind, **more):
    return by_key(s=(ps.ListState[kind], ps.list_state(**more)))


def a_map(key, kind, **more):
    return by_key(s=(ps.MapState[key, kind], ps.map_state(**more)))


def listed(kind, **more):
    return plain(s=(ps.OperatorListState[kind], ps.operator_list_state(**more)))


def rules(kind, key=int):
    return by_rule(s=ps.BroadcastState[key, kind])


def job(operator):
    vertex = JobVertex(id="v", name="v", operators=(operator,), parallelism=1)
    return JobGraph(name="job", vertices=(vertex,), edges=(), settings=JobSettings())


def left_by(operator, *, empty=False):
    """Return a snapshot of an operator all of whose states hold something, or nothing."""
    keyed = tuple(
        KeyedStateSnapshot(
            uid="fn",
            state=name,
            schema=text,
            hash_low=HASH_MIN,
            hash_high=HASH_MAX,
            segments=() if empty else (SEGMENT,),
        )
        for name, text in operator.states.items()
        if not name.startswith("__")
    )
    unkeyed = []
    for name, text in operator.operator_states.items():
        if operator.kind == "broadcast_process":
            item = entries_of(name, schema_from_text(text), empty=empty)
            unkeyed.append(OperatorStateSnapshot(uid="fn", name="broadcast", mode="union", items=(item,)))
        else:
            mode = schema_from_text(text).metadata[b"mode"].decode()
            items = () if empty else ((1, 2),)
            unkeyed.append(OperatorStateSnapshot(uid="fn", name=name, mode=mode, items=items, schema=text))
    return (SubtaskSnapshot(vertex_id="v", subtask=0, keyed=keyed, operator=tuple(unkeyed)),)


def entries_of(name, schema, *, empty):
    """Return a broadcast state of one entry as it stands in a snapshot."""
    named = [pa.field(f.metadata[b"name"].decode(), f.type) for f in schema]
    keys, values = pa.schema(named[:1]), pa.schema(named[1:])
    row_type = None if len(values) == 1 else tuple
    bound = BoundBroadcast(name, StateConfig("broadcast", values, keys, "here", None), StateTypes(row_type, None))
    if not empty:
        bound.handle._entries["a" if pa.types.is_string(keys.field(0).type) else 7] = (1, 2, 3)[: len(values)]
    return bound.saved()


def verdicts(before, after, **more):
    found = check_states(job(after), left_by(before, empty=more.pop("empty", False)), **more)
    return {v.place: v for v in found if not v.state.startswith("__")}


UNCHANGED = {"renamed": {"limit": "most"}}
#: (state, change): (the operator before, the operator after, the verdict, what is said)
CHANGES = {
    ("value", "a field with a default is added"): (value(Rule), value(Longer), "migrates", "adds least = 0"),
    ("value", "a field that may be None is added"): (value(Rule), value(MayBeNone), "migrates", "adds least = None"),
    ("value", "a field is dropped"): (value(Rule), value(Shorter), "migrates", "drops most"),
    ("value", "a field is renamed, and says so"): (
        value(Rule), value(Renamed, **UNCHANGED), "migrates", "renames most to limit",
    ),
    ("value", "a field may be None now"): (value(NoDefault), value(MayBeNone), "same", ""),
    ("value", "a field may not be None any more, and has a default"): (
        value(MayBeNone), value(Longer), "migrates", "least: None becomes 0",
    ),
    ("value", "fields change places"): (value(Rule), value(Swapped), "same", ""),
    ("value", "a default is changed or taken away"): (value(Longer), value(OtherDefault), "same", ""),
    ("value", "anything, and there is a function for it"): (
        value(Rule), value(Text, migrate=ps.migrate(text_of, was=Rule)), "migrates", "by text_of",
    ),
    ("value", "a field without a default is added"): (value(Rule), value(NoDefault), "blocked", "(int64) was added"),
    ("value", "a field is renamed, and a new one has its old name"): (
        value(Rule), value(RenamedAndNew, **UNCHANGED), "blocked", "limit was most, and the job has a new field most",
    ),
    ("value", "a field is narrowed or of another type"): (
        value(Rule), value(Text), "blocked", "most was int64 and is string",
    ),
    ("value", "a field may not be None any more, without a default"): (
        value(MayBeNone), value(NoDefault), "blocked", "least could be None and can no longer be",
    ),
    ("value", "it gets or loses a time-to-live"): (
        value(Rule), value(Rule, ttl="1h"), "blocked", "it had a time-to-live and has none, or the reverse",
    ),
    ("list", "its elements have other fields"): (a_list(Rule), a_list(Longer), "blocked", "was saved with"),
    ("map", "its values have other fields"): (a_map(int, Rule), a_map(int, Longer), "blocked", "was saved with"),
    ("list", "its elements are others, and there is a function for them"): (
        a_list(Rule), a_list(Text, migrate=ps.migrate(text_of, was=Rule)), "migrates", "by text_of",
    ),
    ("map", "its values are others, and there is a function for them"): (
        a_map(int, Rule), a_map(int, Text, migrate=ps.migrate(text_of, was=Rule)), "migrates", "by text_of",
    ),
    ("map", "its keys are of another type"): (a_map(int, Rule), a_map(str, Rule), "blocked", "was saved with"),
    ("value, list, map", "one becomes another"): (a_list(int), value(int), "blocked", "it was a list or map and is a"),
    ("value, list, map", "it is new"): (by_key(), value(Rule), "new", "it begins empty"),
    ("value, list, map", "it is gone"): (value(Rule), by_key(), "blocked", "which no longer declares it"),
    ("all by key", "the key changes"): (value(Rule), value(Rule, key="text"), "blocked", "was keyed by (k int64)"),
    ("operator list, union", "fields change"): (listed(Rule), listed(Longer), "migrates", "adds least = 0"),
    ("operator list, union", "one becomes the other"): (
        listed(Rule), plain(s=(ps.UnionState[Rule], ps.union_state())), "blocked", "was a list by subtask and is a",
    ),
    ("operator list, union", "it is new"): (plain(), listed(Rule), "new", "it begins empty"),
    ("operator list, union", "it is gone"): (listed(Rule), plain(), "blocked", "which no longer declares it"),
    ("broadcast", "its keys or values have other fields"): (
        rules(Rule), rules(Longer), "blocked", "was saved with (value int64, user int64, most int64), the job keeps",
    ),
    ("broadcast", "it is new"): (by_rule(), rules(Rule), "new", "it begins empty"),
    ("broadcast", "it is gone, or has another name"): (
        rules(Rule), by_rule(t=ps.BroadcastState[int, Rule]), "blocked", "which the function does not declare",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("before", "after", "verdict", "said"), CHANGES.values(), ids=map(": ".join, CHANGES))
def test_change(before, after, verdict, said):
    found = verdicts(before, after)["fn/s"]
    assert (found.verdict, said in found.reason) == (verdict, True), found.reason
    assert bool(found.way_out) == (verdict == "blocked")


@pytest.mark.parametrize("case", CHANGES.values(), ids=map(": ".join, CHANGES))
def test_nothing_has_changed(case):
    for operator in case[:2]:
        for found in verdicts(operator, operator).values():
            assert (found.verdict, found.reason) == (
                "same" if found.state else "new",
                "" if found.state else found.reason,
            )


@pytest.mark.parametrize("case", [case for case in CHANGES.values() if "no longer declares" in case[3]])
def test_what_is_gone_may_be_left_behind_by_name_or_when_it_is_empty(case):
    before, after = case[:2]
    for name in ("fn", "fn/s"):
        assert verdicts(before, after, allow_non_restored=[name])["fn/s"].verdict == "dropped"
    assert verdicts(before, after, empty=True)["fn/s"].verdict == "dropped"


def test_the_page_lists_these_changes():
    text = (Path(__file__).parents[3] / "docs" / "how-to" / "evolve-state.md").read_text(encoding="utf-8")
    part = text.split("## Fields of a state\n", 1)[1].split("\n## ", 1)[0]
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in part.splitlines() if line.startswith("|")]
    table = {(state, change): verdict.strip("`") for state, change, verdict, _ in rows[2:]}
    own = {place: case[2] for place, case in CHANGES.items()}
    assert {place: verdict for place, verdict in table.items() if place in own} == own
    others = {place for place in table if place not in own}
    assert all(state in {"window", "running aggregate", "value"} for state, _ in others), others


# --- what a restore hands out


def test_operator_state_that_is_gone_is_not_handed_out_unless_named():
    before, after = listed(Rule), plain(t=(ps.OperatorListState[Rule], ps.operator_list_state()))
    with pytest.raises(StateMismatchError, match="operator state 's' of 'fn', which no longer declares it"):
        assign_state(job(after), left_by(before))
    for name in ("fn", "fn/s"):
        assert assign_state(job(after), left_by(before), allow_non_restored=[name]).of("v", 0) == ()
    assert assign_state(job(after), left_by(before, empty=True)).of("v", 0) == ()
    (restored,) = assign_state(job(before), left_by(before)).of("v", 0)
    assert [(state.name, state.items) for state in restored.operator] == [("s", ((1, 2),))]
    assert restored.operator[0].schema == before.operator_states["s"]


def test_a_functions_state_is_no_built_in_one_whatever_its_name():
    for name in ("watermark", "splits", "in-flight", "broadcast", "top"):
        with pytest.raises(GraphError, match=f"state '{name}' has a name that is reserved for state of the engine"):
            plain(**{name: (ps.OperatorListState[Rule], ps.operator_list_state())})
    before = listed(Rule)
    (part,) = left_by(before)
    renamed = tuple(msgspec.structs.replace(state, name="watermark") for state in part.operator)
    held = (msgspec.structs.replace(part, operator=renamed),)
    with pytest.raises(StateMismatchError, match="operator state 'watermark' of 'fn', which no longer declares it"):
        assign_state(job(before), held)
    blocked = [verdict.place for verdict in check_states(job(before), held) if verdict.verdict == "blocked"]
    assert blocked == ["fn/watermark"]


def test_a_restore_hands_no_operator_what_it_would_not_look_at():
    def held(name):
        state = OperatorStateSnapshot(uid="fn", name=name, mode="list", items=(1,))
        return (SubtaskSnapshot(vertex_id="v", subtask=0, operator=(state,)),)

    graph = job(value(Rule))
    with pytest.raises(StateMismatchError, match="which is now process and does not restore state of that name"):
        assign_state(graph, held("in-flight"))
    assert assign_state(graph, held("in-flight"), allow_non_restored=["fn/in-flight"]).of("v", 0) == ()
    assert len(assign_state(graph, held("watermark")).of("v", 0)) == 1
    asking = job(OperatorSpec(uid="fn", name="fn", kind="map_async", stateful=True))
    assert assign_state(asking, held("watermark")).of("v", 0) == (), "no row is lost with it"


def test_a_migration_is_for_exactly_the_fields_it_names():
    migrated = value(Text, migrate=ps.migrate(text_of, was=Rule))
    assert verdicts(value(Longer), migrated)["fn/s"].verdict == "blocked"
    with_list = a_list(Text, migrate=ps.migrate(text_of, was=Rule))
    assert verdicts(a_list(Longer), with_list)["fn/s"].verdict == "blocked"
    other_keys = a_map(str, Text, migrate=ps.migrate(text_of, was=Rule))
    assert verdicts(a_map(int, Rule), other_keys)["fn/s"].verdict == "blocked"
    assert verdicts(migrated, value(Text))["fn/s"].verdict == "same", "what was migrated before is as it is"
