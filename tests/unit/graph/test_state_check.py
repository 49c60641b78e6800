"""A verdict for every state of a snapshot and a job; what may be left behind, by name only."""

import msgspec
import pyarrow as pa
import pytest

from penstock.config.settings import JobSettings
from penstock.core.errors import StateMismatchError
from penstock.core.keygroup import HASH_MAX, HASH_MIN
from penstock.core.schema import schema_from_text, schema_to_text
from penstock.core.snapshot import (
    Committable,
    FileRef,
    KeyedStateSnapshot,
    OperatorStateSnapshot,
    Segment,
    SubtaskSnapshot,
)
from penstock.graph.job_graph import JobGraph, JobVertex, OperatorSpec
from penstock.graph.restore_plan import assign_state
from penstock.graph.state_check import check_states, require_fit, require_same_places


def columns(key="int64", **values):
    """Return a state's columns, with field ids as segments have them."""
    parts = [("__key_hash", "int64", 1), ("user_id", key, 101), ("__namespace", "int64", 2)]
    parts += [(name, kind, 1001 + i) for i, (name, kind) in enumerate(values.items())]
    fields = [pa.field(name, pa.type_for_alias(kind), True, {"id": str(number)}) for name, kind, number in parts]
    return schema_to_text(pa.schema(fields))


PLAIN = columns(value="int64")


def keyed(uid, state, schema=PLAIN, rows=3):
    segment = Segment(
        file=FileRef(inline=b"x"), position=1, writer="w", rows=rows, hash_min=0, hash_max=1, namespace_min=0,
        namespace_max=0,
    )  # fmt: skip
    return KeyedStateSnapshot(
        uid=uid, state=state, schema=schema, hash_low=HASH_MIN, hash_high=HASH_MAX, segments=(segment,) if rows else ()
    )


def snapshot(*states, output=()):
    operator = (OperatorStateSnapshot(uid="orders", name="splits", mode="split", items=(1,)),)
    return (SubtaskSnapshot(vertex_id="v", subtask=0, keyed=states, operator=operator, committables=output),)


def job(*keyed_operators):
    source = OperatorSpec(uid="orders", name="orders", kind="source", stateful=True)
    sink = OperatorSpec(uid="out", name="out", kind="sink", stateful=True)
    vertex = JobVertex(id="v", name="v", operators=(source, *keyed_operators, sink), parallelism=1)
    return JobGraph(name="job", vertices=(vertex,), edges=(), settings=JobSettings())


def people(**states):
    return OperatorSpec(uid="people", name="p", kind="process", stateful=True, states=states)


def verdicts(graph, subtasks, **more):
    return {v.place: v.verdict for v in check_states(graph, subtasks, **more)}


def test_same_and_new():
    graph = job(people(seen=PLAIN, more=PLAIN))
    assert verdicts(graph, snapshot(keyed("people", "seen"))) == {
        "orders/splits": "same", "people/seen": "same", "people/more": "new", "out": "new",
    }  # fmt: skip


def test_an_operator_that_was_there_and_held_nothing_is_not_new():
    found = verdicts(job(people(more=PLAIN)), snapshot(), known=["orders", "people", "out"])
    assert found == {"orders/splits": "same", "people/more": "new", "out": "same"}


def test_columns_that_are_the_same_in_another_text():
    other = schema_to_text(pa.schema(list(schema_of(PLAIN)), metadata={"written by": "somebody"}))
    assert verdicts(job(people(seen=PLAIN)), snapshot(keyed("people", "seen", other)))["people/seen"] == "same"


def schema_of(text):
    from penstock.core.schema import schema_from_text

    return schema_from_text(text)


@pytest.mark.parametrize(
    ("saved", "reason"),
    [
        (columns(value="string"), "was saved with (user_id int64, value string), the job keeps (user_id int64, value"),
        (columns(other="int64"), "was saved with"),
        (columns(key="string", value="int64"), "was keyed by (user_id string), the job keys it by (user_id int64)"),
    ],
)
def test_columns_that_do_not_fit_are_blocked_with_both_sides_named(saved, reason):
    found = check_states(job(people(seen=PLAIN)), snapshot(keyed("people", "seen", saved)))
    (blocked,) = [v for v in found if v.verdict == "blocked"]
    assert reason in blocked.reason
    assert "new" in blocked.way_out
    with pytest.raises(StateMismatchError, match="people"):
        require_fit(found)


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (("0 to 1", b""), ("0 to 1", b"0"), "blocked"),
        (("0 to 1", b"0"), ("0 to 1", b"01"), "blocked"),
        (("0 to 1", b"0"), ("0 to 2", b"0"), "blocked"),
        (("0 to 1", b"01"), ("0 to 1", b"0"), "same"),
        (("0 to 1", b"0"), ("0 to 1", b""), "same"),
    ],
)
def test_rows_of_a_join_are_for_one_that_has_forgotten_no_more_than_it_may(before, after, verdict):
    saved, wanted = (
        schema_to_text(schema_from_text(PLAIN).with_metadata({b"join": b"from " + bounds.encode(), b"alone": alone}))
        for bounds, alone in (before, after)
    )
    verdicts = check_states(job(people(left=wanted)), snapshot(keyed("people", "left", saved)))
    (found,) = [found for found in verdicts if found.state == "left"]
    assert found.verdict == verdict
    assert not found.reason or "a new uid" in found.way_out


def test_an_operator_that_is_gone_is_blocked_until_it_is_named():
    held = snapshot(keyed("gone", "seen"), keyed("gone", "other"))
    found = check_states(job(), held)
    assert [v.place for v in found if v.verdict == "blocked"] == ["gone/other", "gone/seen"]
    with pytest.raises(StateMismatchError, match="the snapshot has state of operator 'gone', and") as caught:
        require_fit(found)
    assert "--allow-non-restored-state gone" in caught.value.hint
    allowed = check_states(job(), held, allow_non_restored=["gone"])
    require_fit(allowed)
    assert {v.verdict for v in allowed if v.uid == "gone"} == {"dropped"}
    half = check_states(job(), held, allow_non_restored=["gone/seen"])
    assert [v.place for v in half if v.verdict == "blocked"] == ["gone/other"]


@pytest.mark.parametrize(("old", "state"), [("peeple", "other"), ("quite-different", "seen")])
def test_an_operator_with_another_uid_is_named_with_its_line(old, state):
    renamed = msgspec.structs.replace(people(seen=PLAIN), where="job.py:7")
    found = check_states(job(renamed), snapshot(keyed(old, state)))
    (blocked,) = [v for v in found if v.verdict == "blocked"]
    assert blocked.way_out.startswith("change the uid 'people' back, or drop its state")
    assert blocked.where == "job.py:7"
    (new,) = [v for v in found if v.place == "people/seen"]
    assert new.reason == f"it begins empty; did it have the uid {old!r}?"
    with pytest.raises(StateMismatchError, match=f"^job.py:7: the snapshot has state of operator {old!r}"):
        require_fit(found)


def test_an_operator_of_the_snapshot_is_no_other_with_a_new_uid():
    found = check_states(job(people(seen=PLAIN)), snapshot(keyed("peeple", "other")), known=["people"])
    (blocked,) = [v for v in found if v.verdict == "blocked"]
    assert blocked.way_out.startswith("add .uid('peeple') to its operator, or drop")


def test_other_reasons_are_counted():
    held = snapshot(keyed("gone", "seen"), keyed("lost", "seen"))
    with pytest.raises(StateMismatchError, match=r"'gone'.*; 1 more: lost/seen"):
        require_fit(check_states(job(), held))


def test_errors_and_hints_have_the_names_that_the_check_prints():
    gone = snapshot(keyed("gone", "seen"), keyed("people", "panes"), keyed("people", "__timers_event"))
    found = check_states(job(people(seen=PLAIN)), gone)
    with pytest.raises(StateMismatchError, match=r"; 2 more: people/timers \(event time\), people/windows"):
        require_fit(found)
    ways = [v.way_out.rpartition("--allow-non-restored-state ")[2] for v in found if v.uid == "people" and v.way_out]
    assert ways == ["'people/timers (event time)'", "people/windows"]
    allowed = check_states(
        job(people(seen=PLAIN)), gone, allow_non_restored=["gone", "people/windows", "people/timers (event time)"]
    )
    require_fit(allowed)


def test_a_state_that_is_gone_is_blocked_until_it_is_named():
    graph = job(people(seen=PLAIN))
    held = snapshot(keyed("people", "seen"), keyed("people", "sean"))
    (blocked,) = [v for v in check_states(graph, held) if v.verdict == "blocked"]
    assert "3 rows of state 'sean'" in blocked.reason
    assert "did you mean 'seen'" in blocked.way_out
    for name in ("people", "people/sean"):
        assert verdicts(graph, held, allow_non_restored=[name])["people/sean"] == "dropped"
        (restore,) = assign_state(graph, held, allow_non_restored=[name]).of("v", 0)
        assert [state.state for state in restore.keyed] == ["seen"]
    assert [s.state for s in assign_state(graph, held).of("v", 0)[0].keyed] == ["seen", "sean"]


def test_what_is_not_known_to_be_gone_is_never_left_behind():
    held = snapshot(keyed("people", "seen"))
    for name in ("people", "people/seen"):
        (restore,) = assign_state(job(people()), held, allow_non_restored=[name]).of("v", 0)
        assert [state.state for state in restore.keyed] == ["seen"]


def test_a_state_without_rows_is_nothing_to_lose():
    found = verdicts(job(people(seen=PLAIN)), snapshot(keyed("people", "seen"), keyed("people", "old", rows=0)))
    assert found["people/old"] == "dropped"


@pytest.mark.parametrize("name", ["people", "people/seen", "peeple", "orders"])
def test_a_name_that_leaves_nothing_behind_is_refused(name):
    with pytest.raises(StateMismatchError, match="no state of that name can be dropped"):
        check_states(job(people(seen=PLAIN)), snapshot(keyed("people", "seen")), allow_non_restored=[name])


def test_unpublished_output_is_never_left_behind():
    owed = Committable(id="c", uid="old-sink", run_id="r", subtask=0, checkpoint_id=1)
    for held, pending in ((snapshot(output=(owed,)), ()), (snapshot(), (owed,))):
        found = check_states(job(), held, pending=pending)
        (blocked,) = [v for v in found if v.verdict == "blocked"]
        assert "is not published yet" in blocked.reason
        with pytest.raises(StateMismatchError, match="no state of that name"):
            check_states(job(), held, pending=pending, allow_non_restored=["old-sink"])


def test_keyed_state_of_what_is_now_a_sink():
    found = check_states(job(), snapshot(keyed("out", "seen")))
    (blocked,) = [v for v in found if v.verdict == "blocked"]
    assert "is now sink, which keeps none" in blocked.reason


def test_without_declarations_only_uids_are_compared():
    graph = job(people())
    assert verdicts(graph, snapshot(keyed("people", "seen")))["people/seen"] == "same"
    assert verdicts(graph, snapshot(keyed("people", "x")))["people/x"] == "same"


def test_the_watermark_of_a_task_is_no_state_of_the_job():
    own = OperatorStateSnapshot(uid="old-head", name="__input_watermark", mode="subtask", items=(1,))
    part = msgspec.structs.replace(snapshot()[0], operator=(own,))
    assert "old-head/__input_watermark" not in verdicts(job(), (part,))


def unkeyed(uid, *names, items=(1,)):
    return tuple(OperatorStateSnapshot(uid=uid, name=name, mode="list", items=items) for name in names)


@pytest.mark.parametrize("name", ["in-flight", "broadcast", "top", "splits"])
def test_state_that_is_not_keyed_is_blocked_where_the_operators_kind_takes_none_up(name):
    graph, held = job(people(seen=PLAIN)), unkeyed("people", name)
    part = msgspec.structs.replace(snapshot()[0], operator=held)
    (blocked,) = [v for v in check_states(graph, (part,)) if v.verdict == "blocked"]
    assert f"holds state {name!r} of 'people', which is now process" in blocked.reason
    assert f"--allow-non-restored-state people/{name}" in blocked.way_out
    assert verdicts(graph, (part,), allow_non_restored=[f"people/{name}"])[f"people/{name}"] == "dropped"
    empty = msgspec.structs.replace(part, operator=unkeyed("people", name, "watermark", items=()))
    assert verdicts(graph, (empty,))[f"people/{name}"] == "dropped"


def test_every_kind_has_the_state_it_saves_itself():
    saved = {"map_async": "in-flight", "broadcast_process": "broadcast", "window_top": "top", "source": "splits"}
    for kind, name in saved.items():
        graph = job(OperatorSpec(uid="one", name="one", kind=kind, stateful=True))
        part = msgspec.structs.replace(snapshot()[0], operator=unkeyed("one", name))
        assert verdicts(graph, (part,))[f"one/{name}"] == "same"


# --- a source that names another place -------------------------------------------------------------------------------


def reading(*topics):
    """Return a job whose source names these topics."""
    config = {"source": {"place": f"topic {', '.join(topics)}", "split_ids": [f"{topic}-[0-9]*" for topic in topics]}}
    source = OperatorSpec(uid="orders", name="orders", kind="source", stateful=True, config=config)
    vertex = JobVertex(id="v", name="v", operators=(source,), parallelism=1)
    return JobGraph(name="job", vertices=(vertex,), edges=(), settings=JobSettings())


def read(*ids):
    items = tuple({"id": id_} for id_ in ids)
    state = OperatorStateSnapshot(uid="orders", name="splits", mode="split", items=items)
    return (SubtaskSnapshot(vertex_id="v", subtask=0, operator=(state,)),)


def test_a_source_that_names_another_topic_is_refused_with_both_and_the_ways_out():
    (verdict,) = check_states(reading("paid"), read("orders-0", "orders-1"))
    assert verdict.verdict == "blocked"
    assert verdict.reason == "source 'orders' has read orders-0, orders-1, and now names topic paid"
    assert verdict.way_out == (
        "name the old place too, give the source a new uid, or"
        " drop its old positions with --allow-non-restored-state orders/splits"
    )
    with pytest.raises(StateMismatchError, match="has read orders-0, and now names topic orders-v2"):
        require_same_places(reading("orders-v2"), read("orders-0"))


def test_a_source_that_names_a_topic_more_goes_on():
    assert [v.verdict for v in check_states(reading("orders", "paid"), read("orders-0"))] == ["same"]
    require_same_places(reading("orders", "paid"), read("orders-0"))


def test_only_the_positions_of_the_other_topic_are_dropped():
    allowed = ("orders/splits",)
    (verdict,) = check_states(reading("paid"), read("orders-0", "paid-0"), allow_non_restored=allowed)
    assert verdict.verdict == "dropped"
    plan = assign_state(reading("paid"), read("orders-0", "paid-0"), allow_non_restored=allowed)
    assert plan.splits["orders"] == ({"id": "paid-0"},)
