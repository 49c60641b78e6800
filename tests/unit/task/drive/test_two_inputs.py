"""A task whose operator has two inputs: which one a row is of, barriers, watermarks and ends over both."""

import msgspec
import pytest

from penstock.core.elements import MAX_TIMESTAMP, BarrierKind, Watermark, WatermarkStatus
from penstock.task.drive.subtask import StepResult


@pytest.fixture
def two(world):
    """Two sources, one an input each, into one operator that notes the input of every row."""
    made = world(sources=2)
    deployment = made.deployment

    def split(vertex, subtask):
        task = deployment(vertex, subtask)
        if vertex == "sink":
            (spec,) = task.inputs
            sides = [msgspec.structs.replace(spec, input_index=n, channels=spec.channels[n : n + 1]) for n in (0, 1)]
            task = msgspec.structs.replace(task, inputs=tuple(sides))
        return task

    made.deployment = split
    record = made.sink.process_batch

    def noted(batch, input_index, out):
        made.sink.seen.append(f"input {input_index}")
        record(batch, input_index, out)

    made.sink.process_batch = noted
    made.deploy()
    made.settle()
    return made


def test_the_operator_is_told_which_input_a_row_is_of(two, batch_of):
    two.sources[1].script.append(batch_of(2))
    two.settle()
    two.sources[0].script.append(batch_of(1))
    two.settle()
    assert two.sink.seen == ["input 1", 2, "input 0", 1]
    assert len(two.sink.context.input_schemas) == 2


def test_event_time_is_the_lower_of_both_inputs_and_an_idle_one_does_not_count(two):
    two.sources[0].script.append(Watermark(50))
    two.settle()
    assert two.sink.seen == []
    two.sources[1].script.append(Watermark(20))
    two.settle()
    assert two.sink.seen == [("watermark", 20)]
    two.sources[1].script.append(WatermarkStatus(idle=True))
    two.settle()
    assert two.sink.seen == [("watermark", 20), ("watermark", 50)]


def test_an_input_that_has_ended_holds_nothing_back_and_its_barriers_still_count(two, batch_of):
    two.sources[0].ended = True
    two.settle()
    assert two.sink.seen == []
    two.sources[1].script.extend([Watermark(7), batch_of(1)])
    two.settle()
    assert two.sink.seen == [("watermark", 7), "input 1", 1]
    two.trigger(1)
    two.settle()
    assert two.sink.seen[-1] == ("barrier", 1)
    two.sources[1].ended = True
    two.settle()
    assert two.sink.seen[-2:] == [("watermark", MAX_TIMESTAMP), "finish"]


def test_a_barrier_on_one_input_waits_for_the_other_whose_rows_go_on(two, batch_of):
    first, second = two.subtasks("source")
    first.trigger(1, BarrierKind.CHECKPOINT)
    two.sources[0].script.append(batch_of(10))
    two.sources[1].script.append(batch_of(20))
    two.settle()
    assert two.sink.seen == ["input 1", 20]
    second.trigger(1, BarrierKind.CHECKPOINT)
    two.settle()
    assert two.sink.seen == ["input 1", 20, ("barrier", 1), "input 0", 10]


def test_an_input_that_waits_for_a_barrier_fills_up_to_its_credit_and_the_other_goes_on(two, batch_of):
    first, second = two.subtasks("source")
    first.trigger(1, BarrierKind.CHECKPOINT)
    two.settle()
    two.sources[0].script.extend(batch_of(*range(200_000)) for _ in range(30))
    two.sources[1].script.extend(batch_of(n) for n in range(3))
    two.settle()
    assert two.sources[0].script, "the sender of the blocked input was not held back"
    assert two.sources[0].polled_backpressured
    assert not two.sources[1].script
    assert two.sink.seen == ["input 1", 0, "input 1", 1, "input 1", 2]
    assert second.step() is not StepResult.BACKPRESSURED
