"""The spans of a job's life: made of the events of its master alone, the same whoever replays them."""

import pytest

from penstock.graph.rescale import rescaled
from penstock.jobmanager.messages import commands as cmd
from penstock.jobmanager.messages import events as ev
from penstock.jobmanager.messages.views import CheckpointView, SubtaskCheckpointView
from penstock.jobmanager.observe.spans import (
    MOST_SUBTASKS,
    SpanBuilder,
    SpanContext,
    checkpoint_spans,
    context_of,
    parse_traceparent,
)

CALLER = SpanContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")
HEADER = f"00-{CALLER.trace_id}-{CALLER.span_id}-01"


def traced(world, parent=None):
    """Let a world tell its spans; return the list they go to."""
    builder, handle, spans = SpanBuilder(("j", "job"), 0, parent), world.master.handle, []

    def observed(event, now_ms):
        commands = handle(event, now_ms)
        spans.extend(builder.observe(event, commands, world.master, now_ms))
        return commands

    world.master.handle = observed
    return spans


def named(spans, name):
    return [span for span in spans if span.name == name]


def below(spans, parent):
    return [span.name for span in spans if span.parent == parent.context]


def test_a_submission_is_told_with_its_first_start_in_the_trace_of_the_caller(world_of):
    world = world_of()
    spans = traced(world, parse_traceparent(HEADER))
    world.start()
    (submit,), (start,) = named(spans, "Submit"), named(spans, "JobInitialization")
    assert submit.parent == CALLER
    assert {span.context.trace_id for span in spans} == {CALLER.trace_id}
    assert start.parent == submit.context
    assert set(below(spans, start)) == {"ReadLog", "StartWorkers", "RestoreState"}
    assert start.attributes["initializationStatus"] == "COMPLETED"
    assert start.attributes["job.id"] == "j"
    assert "checkpointId" not in start.attributes


@pytest.mark.parametrize(
    "header",
    ["", "nonsense", f"00-{'0' * 32}-{CALLER.span_id}-01", f"00-{CALLER.trace_id}-{'0' * 16}-01", f"ff{HEADER[2:]}",
     HEADER[:-1]],
)  # fmt: skip
def test_what_is_no_traceparent_names_no_span(header):
    assert parse_traceparent(header) is None


def test_a_checkpoint_is_told_with_its_subtasks_and_its_commit(world_of):
    world = world_of()
    spans = traced(world)
    world.start().pass_time(1000)
    (cut,) = named(spans, "Checkpoint")
    assert cut.parent is None
    assert sorted(below(spans, cut)) == ["Checkpoint_Subtask"] * 4 + ["Commit"]
    for subtask in named(spans, "Checkpoint_Subtask"):
        assert below(spans, subtask) == ["Upload", "Synchronous", "Alignment"]
    assert (cut.attributes["checkpointStatus"], cut.attributes["checkpointId"]) == ("COMPLETED", 1)
    assert (cut.start_ms, cut.end_ms, cut.error) == (1000, 1000, "")


def test_steps_are_laid_out_backwards_from_the_ack_and_never_begin_before_the_trigger():
    part = SubtaskCheckpointView(
        vertex_id="v", subtask=3, ack_ms=1100, state_bytes=7, new_bytes=5, alignment_ms=60.0, sync_ms=10.0,
        async_ms=40.0, processed_bytes=2, buffered_bytes=1,
    )  # fmt: skip
    view = CheckpointView(
        id=9, kind="savepoint", status="COMPLETED", trigger_ms=1005, end_ms=1200, subtasks=(part,), unaligned=True
    )
    whole, own, *steps = checkpoint_spans(view, (context_of("x", None), None), None, {})
    assert (whole.attributes["checkpointType"], whole.attributes["isUnaligned"]) == ("Savepoint", True)
    assert [(s.name, s.start_ms, s.end_ms) for s in steps] == [
        ("Upload", 1070, 1100), ("Synchronous", 1060, 1070), ("Alignment", 1005, 1060),
    ]  # fmt: skip
    assert own.attributes["alignmentBuffered"] == 1
    assert {s.parent for s in steps} == {own.context}


def test_of_many_subtasks_the_last_ones_are_told():
    parts = tuple(
        SubtaskCheckpointView(
            vertex_id="v", subtask=n, ack_ms=n, state_bytes=0, new_bytes=0, alignment_ms=0, sync_ms=0, async_ms=0
        )
        for n in range(MOST_SUBTASKS + 20)
    )
    view = CheckpointView(id=1, kind="checkpoint", status="COMPLETED", trigger_ms=0, end_ms=99, subtasks=parts)
    told = named(checkpoint_spans(view, (context_of("x", None), None), None, {}), "Checkpoint_Subtask")
    assert [span.attributes["subtask"] for span in told] == list(range(MOST_SUBTASKS + 19, 19, -1))


def test_a_checkpoint_that_is_not_appended_is_told_with_the_reason(world_of):
    world = world_of()
    spans = traced(world)
    world.start()
    world.append_error = "no room"
    world.pass_time(1000)
    cut = named(spans, "Checkpoint")[0]
    assert "no room" in cut.error
    assert cut.attributes["checkpointStatus"] == "FAILED"


def test_a_restart_is_told_with_what_it_restores_and_why(world_of):
    world = world_of()
    spans = traced(world)
    world.start().pass_time(1000)
    world.kill(next(iter(world.workers)))
    world.pass_time(500)
    first, second = named(spans, "JobInitialization")
    assert second.parent is None
    assert (second.attributes["checkpointId"], second.attributes["restarts"]) == (1, 1)
    assert "SIGKILL" in second.attributes["restart.cause"]
    assert "PublishPending" in below(spans, second)
    assert first.context.trace_id != second.context.trace_id
    assert len(named(spans, "Submit")) == 1


def test_a_rescale_is_one_trace_of_its_checkpoint_and_its_start(world_of):
    world = world_of()
    spans = traced(world)
    world.start().pass_time(1000)
    world.post(ev.RescaleRequested("q", "r2", rescaled(world.master.graph, 3, {})))
    world.pass_time(500)
    (whole,) = named(spans, "Rescale")
    assert whole.error == ""
    assert below(spans, whole) == ["Checkpoint", "JobInitialization"]


def test_a_checkpoint_beside_a_rescale_that_waits_for_slots_is_not_part_of_it(world_of):
    world = world_of()
    spans, handle = traced(world), world.master.handle
    world.start().pass_time(1000)
    world.master.handle = lambda *given: [c for c in handle(*given) if not isinstance(c, cmd.RequestSlots)]
    world.post(ev.RescaleRequested("q", "r2", rescaled(world.master.graph, 3, {})))
    world.pass_time(2000)
    world.master.handle = handle
    before = named(spans, "Checkpoint")
    assert [cut.parent for cut in before] == [None] * len(before)
    assert len(before) > 1
    taken, world.free = world.free[:2], world.free[2:]
    world.post(ev.SlotsGranted(tuple(taken))).pass_time(1500)
    (whole,) = named(spans, "Rescale")
    assert whole.error == ""
    assert below(spans, whole) == ["Checkpoint", "JobInitialization"]


def test_a_savepoint_is_told_with_its_cut_and_its_copy_and_a_refused_one_with_the_reason(world_of):
    world = world_of()
    spans = traced(world)
    world.start()
    world.post(ev.SavepointRequested("s", "memory://copy"))
    (whole,) = named(spans, "Savepoint")
    assert sorted(below(spans, whole)) == ["Checkpoint", "Copy"]
    assert whole.attributes["location"] == "memory://copy"
    world.copy_error = "the disk is full"
    world.post(ev.SavepointRequested("t", "memory://other"))
    assert "the disk is full" in named(spans, "Savepoint")[1].error


def test_the_next_leader_has_spans_of_its_own_and_no_second_submission(world_of, store):
    first = world_of()
    spans = traced(first, CALLER)
    first.start().pass_time(1000)
    second = world_of(generation=2)
    later = traced(second, CALLER)
    second.start()
    assert named(later, "Submit") == []
    (start,) = named(later, "JobInitialization")
    assert start.attributes["checkpointId"] == 1
    assert not {s.context.span_id for s in spans} & {s.context.span_id for s in later}


def test_the_same_events_give_the_same_spans_and_no_two_spans_one_id(graph_of):
    from tests.unit.jobmanager.conftest import World

    from penstock.checkpoint.memory_store import MemoryStore

    def life():
        world = World(graph_of(), MemoryStore())
        spans = traced(world)
        world.start().pass_time(3000)
        world.kill(next(iter(world.workers)))
        world.pass_time(2000)
        return spans

    spans = life()
    assert spans == life()
    assert len({(s.context.trace_id, s.context.span_id) for s in spans}) == len(spans)
