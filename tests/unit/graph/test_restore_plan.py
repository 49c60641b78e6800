"""What a subtask gets back: examples; that every hash is covered once is a property test."""

import pytest

from penstock.core.errors import StateMismatchError
from penstock.core.keygroup import HASH_MAX, HASH_MIN, hash_range_of
from penstock.core.snapshot import (
    Committable,
    FileRef,
    KeyedStateSnapshot,
    OperatorStateSnapshot,
    Segment,
    SubtaskSnapshot,
    Tombstone,
)
from penstock.graph.job_graph import OperatorSpec
from penstock.graph.restore_plan import assign_state, bytes_to_prepare
from penstock.graph.state_check import restorable_states

LOW = hash_range_of(0, 2, 1024)
HIGH = hash_range_of(1, 2, 1024)


def segment(low, high, length=0, **changes):
    values = {"position": 0, "writer": "r/v/0/0", "rows": 5, "namespace_min": 0, "namespace_max": 9}
    return Segment(file=FileRef(path="data/x", length=length), hash_min=low, hash_max=high, **{**values, **changes})


def keyed(hashes, *segments, uid="w", state="panes", tombstones=()):
    return KeyedStateSnapshot(
        uid=uid,
        state=state,
        schema="",
        hash_low=hashes.low,
        hash_high=hashes.high,
        segments=segments,
        tombstones=tombstones,
    )


def of_window(*states):
    return tuple(SubtaskSnapshot(vertex_id="v", subtask=i, keyed=(s,)) for i, s in enumerate(states))


def listed(mode, *items, uid="a", name="watermark"):
    return tuple(
        SubtaskSnapshot(
            vertex_id="v", subtask=i, operator=(OperatorStateSnapshot(uid=uid, name=name, mode=mode, items=part),)
        )
        for i, part in enumerate(items)
    )


@pytest.fixture
def job(graphs):
    def make(parallelism=2, **settings):
        graphs.set(parallelism=parallelism, **settings)
        graphs.sink(graphs.window(graphs.source("a"), "w"), name="s")
        return graphs.job_graph()

    return make


def restored(plan, graph, uid="w"):
    vertex = next(v for v in graph.vertices if any(o.uid == uid for o in v.operators))
    return [next((r for r in plan.of(vertex.id, i) if r.uid == uid), None) for i in range(vertex.parallelism)]


def test_unchanged_parallelism_gives_everything_back_as_it_was(job):
    graph = job()
    low, high = keyed(LOW, segment(LOW.low, LOW.high)), keyed(HIGH, segment(HIGH.low, HIGH.high))
    parts = restored(assign_state(graph, of_window(low, high), checkpoint_id=7), graph)
    assert [len(p.keyed) for p in parts] == [1, 1]
    assert parts[0].keyed[0].segments[0].clip_high == LOW.high
    assert parts[1].keyed[0].segments[0].clip_low == HIGH.low
    assert assign_state(graph, of_window(low, high), checkpoint_id=7).checkpoint_id == 7


def test_scaling_out_clips_a_file_for_each_owner(job):
    graph = job(2)
    both = keyed(
        hash_range_of(0, 1, 1024),
        segment(HASH_MIN, HASH_MAX),
        tombstones=(Tombstone(position=1, hash_low=HASH_MIN, hash_high=HASH_MAX, namespace_low=0, namespace_high=5),),
    )
    parts = restored(assign_state(graph, of_window(both)), graph)
    clips = [(p.keyed[0].segments[0].clip_low, p.keyed[0].segments[0].clip_high) for p in parts]
    assert clips == [(LOW.low, LOW.high), (HIGH.low, HIGH.high)]
    stones = [(p.keyed[0].tombstones[0].hash_low, p.keyed[0].tombstones[0].hash_high) for p in parts]
    assert stones == clips
    assert [(p.keyed[0].hash_low, p.keyed[0].hash_high) for p in parts] == clips


def test_a_file_without_rows_of_ours_is_left_out(job):
    graph = job(2)
    both = keyed(hash_range_of(0, 1, 1024), segment(HASH_MIN, -5), segment(5, HASH_MAX, position=1))
    parts = restored(assign_state(graph, of_window(both)), graph)
    assert [[s.position for s in p.keyed[0].segments] for p in parts] == [[0], [1]]


def test_an_earlier_clip_is_never_widened(job):
    """Out and in again: two subtasks hold one file, each its half; together they must not read a row twice."""
    graph = job(1)
    low = keyed(LOW, segment(HASH_MIN, HASH_MAX, clip_high=LOW.high))
    high = keyed(HIGH, segment(HASH_MIN, HASH_MAX, clip_low=HIGH.low))
    (part,) = restored(assign_state(graph, of_window(low, high)), graph)
    assert [(s.clip_low, s.clip_high) for k in part.keyed for s in k.segments] == [
        (HASH_MIN, LOW.high),
        (HIGH.low, HASH_MAX),
    ]


def test_two_owners_of_a_hash_are_refused(job):
    with pytest.raises(StateMismatchError, match="claimed twice"):
        assign_state(job(), of_window(keyed(LOW), keyed(LOW)))


def test_two_states_of_one_operator_may_have_the_same_hashes(job):
    snapshot = SubtaskSnapshot(vertex_id="v", subtask=0, keyed=(keyed(LOW), keyed(LOW, state="timers")))
    graph = job()
    assert [k.state for k in restored(assign_state(graph, (snapshot,)), graph)[0].keyed] == ["panes", "timers"]


@pytest.mark.parametrize("what", ["keyed", "operator", "output"])
def test_state_of_an_unknown_uid_is_refused_unless_allowed(job, what):
    old = {
        "keyed": SubtaskSnapshot(vertex_id="v", subtask=0, keyed=(keyed(LOW, uid="gone"),)),
        "operator": listed("list", (1,), uid="gone")[0],
        "output": SubtaskSnapshot(
            vertex_id="v",
            subtask=0,
            committables=(Committable(id="c", uid="gone", run_id="r", subtask=0, checkpoint_id=1),),
        ),
    }[what]
    graph = job()
    with pytest.raises(StateMismatchError) as caught:
        assign_state(graph, (old,))
    assert "'gone'" in str(caught.value)
    assert "--allow-non-restored-state" in caught.value.hint
    assert assign_state(graph, (old,), allow_non_restored=["gone"]).restores == {}


def test_list_state_goes_round_robin(job):
    graph = job(3)
    parts = restored(assign_state(graph, listed("list", (1, 2), (3, 4))), graph, "a")
    assert [p.operator[0].items for p in parts] == [(1, 4), (2,), (3,)]


def test_list_state_stays_where_it_was_and_in_order_when_nothing_is_rescaled(job):
    graph = job(2)
    parts = restored(assign_state(graph, listed("list", (1, 2, 3), (4,))), graph, "a")
    assert [p.operator[0].items for p in parts] == [(1, 2, 3), (4,)]


def test_union_state_goes_to_everybody(job):
    graph = job(3)
    parts = restored(assign_state(graph, listed("union", (1,), (2,))), graph, "a")
    assert [p.operator[0].items for p in parts] == [(1, 2)] * 3


def test_subtask_state_stays_where_it_was(job):
    graph = job(2)
    parts = restored(assign_state(graph, listed("subtask", (10,), (20,))), graph, "a")
    assert [p.operator[0].items for p in parts] == [(10,), (20,)]


def test_the_watermark_of_a_tasks_input_is_the_lowest_because_its_sources_may_be_given_other_splits(job):
    graph = job(2)
    parts = restored(assign_state(graph, listed("subtask", (10,), (20,), name="__input_watermark")), graph, "a")
    assert [p.operator[0].items for p in parts] == [(10,), (10,)]


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        (((10,), (20,)), (10,)),
        (((10,), (None,)), (None,)),
        ((({"0": 10, "1": 7},), ({"0": 5},)), ({"0": 5, "1": 7},)),
    ],
)
def test_subtask_state_is_merged_to_the_minimum_when_rescaled(job, left, expected):
    graph = job(3)
    parts = restored(assign_state(graph, listed("subtask", *left)), graph, "a")
    assert [p.operator[0].items for p in parts] == [expected] * 3


def test_a_subtask_that_saved_none_gets_none_while_the_parallelism_stays(job):
    graph = job(2)
    lone = (listed("subtask", (10,))[0], SubtaskSnapshot(vertex_id="v", subtask=1))
    parts = restored(assign_state(graph, lone), graph, "a")
    assert [p and p.operator[0].items for p in parts] == [(10,), None]


@pytest.mark.parametrize(("name", "expected"), [("watermark", (10,)), ("__input_watermark", None)])
def test_saving_none_means_idle_for_an_operator_and_no_watermark_for_a_task(job, name, expected):
    graph = job(3)
    lone = (listed("subtask", (10,), name=name)[0], SubtaskSnapshot(vertex_id="v", subtask=1))
    parts = restored(assign_state(graph, lone), graph, "a")
    assert [p and p.operator[0].items for p in parts] == [expected] * 3


def test_a_task_whose_chain_is_gone_leaves_nothing_behind(job):
    graph = job(2)
    assert assign_state(graph, listed("subtask", (1,), uid="map-3", name="__input_watermark")).restores == {}


def test_watermarks_that_do_not_match_are_refused(job):
    graph = job(3)
    with pytest.raises(StateMismatchError, match="different numbers"):
        assign_state(graph, listed("subtask", (1,), (1, 2)))
    with pytest.raises(StateMismatchError, match="not watermarks"):
        assign_state(graph, listed("subtask", ("a",), ("b",)))


def test_an_unknown_mode_is_refused(job):
    with pytest.raises(StateMismatchError, match="unknown mode 'new'"):
        assign_state(job(), listed("new", (1,)))


def test_splits_are_collected_for_the_job_to_assign(job):
    graph = job(3)
    plan = assign_state(graph, listed("split", ({"id": "p-0"},), ({"id": "p-1"},), ()))
    assert plan.splits == {"a": ({"id": "p-0"}, {"id": "p-1"})}
    assert restored(plan, graph, "a") == [None] * 3


def test_a_fresh_start_restores_nothing(job):
    plan = assign_state(job(), ())
    assert plan.restores == {}
    assert plan.splits == {}


@pytest.mark.parametrize(
    "kind",
    [
        *("window_aggregate", "zoned_window", "window_rows", "processing_window", "session_aggregate"),
        *("interval_join", "window_join", "window_rows_join", "temporal_join", "process", "co_process"),
    ],
)
def test_operators_with_event_time_go_on_at_the_watermark_of_before(kind):
    """Or rows that were late would not be any more."""
    mark = OperatorStateSnapshot(uid="w", name="watermark", mode="union", items=(7,))
    assert restorable_states(OperatorSpec(uid="w", name="w", kind=kind), [(0, mark)], ()) == [(0, mark)]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"prepare_state_bytes": 100}, 100),
        ({"prepare_state_bytes": 101}, None),
        ({"prepare_state_bytes": 0, "state_backend": "remote"}, None),
    ],
)
def test_much_state_is_loaded_before_the_stop_unless_it_is_read_on_demand(job, settings, expected):
    low, high = segment(LOW.low, LOW.high, 100), segment(HIGH.low, HIGH.high, 70)
    assert bytes_to_prepare(job(**settings), of_window(keyed(LOW, low), keyed(HIGH, high))) == expected


@pytest.mark.parametrize(("limit", "expected"), [(0, 0), (1, None)])
def test_state_that_cannot_be_assigned_counts_as_none(job, limit, expected):
    unknown = of_window(keyed(LOW, segment(LOW.low, LOW.high, 100), uid="gone"))
    assert bytes_to_prepare(job(prepare_state_bytes=limit), unknown) == expected
