"""State that was loaded before its operator starts, and what a later checkpoint adds: the models agree.

The models' own histories have such starts too (`start_prepared`); here it is certain that the loaded state is used.
"""

import pytest
from tests.property import (
    test_collections_model,
    test_interval_join_model,
    test_process_model,
    test_running_model,
    test_windows_model,
)
from tests.property.harness.backends import DISK, FILES, MEMORY, leaving, on
from tests.property.harness.histories import end, play
from tests.property.harness.job import Job
from tests.property.harness.sides import Sides
from tests.property.running_models import Steps as RunningSteps
from tests.property.test_process_model import Steps as ProcessSteps
from tests.property.test_windows_model import Steps as WindowSteps


@pytest.fixture(autouse=True)
def advanced(monkeypatch):
    """How often loaded state was used, by kind of operator."""
    counts = type(Job.advanced)()
    monkeypatch.setattr(Job, "advanced", counts)
    return counts


def twice(*batches):
    """Return a history with a checkpoint after each of two batches, whose state is loaded one after the other."""
    first, second, third = batches
    return [
        first,
        ("checkpoint",),
        second,
        ("checkpoint",),
        ("start_prepared", 2),
        third,
        ("checkpoint",),
        ("start", 3),
    ]


@on(MEMORY, FILES)
@pytest.mark.parametrize("name", ["running", "last", "first"])
def test_a_running_aggregate_continues(backend, name, advanced):
    with test_running_model.job_on(backend, name) as job:
        steps = RunningSteps(job)
        # the first checkpoint has many keys of which few change, so that they are not saved as a whole
        play([("start", 2), *twice(("batch", 1, 400), ("batch", 2, 3), ("batch", 3, 40))], steps, job)
        steps.question()
    assert advanced.total() == 2


@on(MEMORY, leaving(3))
@pytest.mark.parametrize("way", ["plain", "values"])
def test_windows_continue_without_those_that_were_closed(backend, way, advanced):
    case = (way, next(iter(test_windows_model.KEYS)), test_windows_model.WINDOWS[0])
    with test_windows_model.job_on(backend, *case) as job:
        steps = WindowSteps(job, way)
        closing = [("watermark", subtask, 100) for subtask in range(2)]
        begin = [("start", 2), ("batch", 1, 60), ("checkpoint",), ("batch", 2, 60), *closing, ("checkpoint",)]
        play([*begin, ("start_prepared", 2), ("batch", 3, 60), ("checkpoint",), ("start", 1)], steps, job)
        end(job, steps)
    assert advanced.total() == 2


@on(MEMORY, leaving(2))
def test_a_process_function_continues_with_its_timers(backend, advanced):
    with test_process_model.job_on(backend) as job:
        steps = ProcessSteps(job)
        fired = [("watermark", subtask, 60) for subtask in range(2)]
        begin = [("start", 2), ("batch", 1, 60, 80), ("checkpoint",), ("batch", 2, 60, 40), *fired, ("checkpoint",)]
        play([*begin, ("start_prepared", 2), ("batch", 3, 60, 80), ("checkpoint",), ("start", 1)], steps, job)
        steps.watermark(0, 1000)
    assert advanced.total() == 2


@on(MEMORY, leaving(2))
def test_timers_that_fired_between_the_checkpoints_do_not_fire_again(backend, advanced):
    with test_process_model.job_on(backend) as job:
        steps = ProcessSteps(job)
        steps.rows([(key, "event", 10 * n, 0) for n, key in enumerate(test_process_model.KEYS, 1)])
        job.checkpoint()
        steps.watermark(0, 35)
        steps.rows([(key, "event", 40 + n, 0) for n, key in enumerate(test_process_model.KEYS, 1)])
        job.checkpoint()
        play([("start_prepared", 2)], steps, job)
        for subtask in range(2):
            steps.watermark(subtask, 1000)
        job.checkpoint()
        play([("start", 1)], steps, job)
        steps.watermark(0, 2000)
    assert advanced.total() == 2


@on(MEMORY, DISK)
def test_a_join_continues_without_rows_that_can_meet_no_other(backend, advanced):
    with test_interval_join_model.job_on(backend, -30, 20, "full", late=True) as job:
        steps = Sides(job)
        begin = [("start", 2), ("batch", 0, 1, 40), ("batch", 1, 2, 40), ("checkpoint",), ("batch", 0, 3, 40)]
        closing = [("mark", subtask, 60) for subtask in range(2)]
        play([*begin, *closing, ("checkpoint",), ("start_prepared", 2), ("batch", 1, 4, 40)], steps, job)
        end(job, steps)
    assert advanced.total() == 2


@on(MEMORY, leaving(2))
def test_the_result_of_a_compaction_is_read_as_a_whole(backend, advanced):
    with test_process_model.job_on(backend) as job:
        steps = ProcessSteps(job)
        batches = [one for seed in range(1, 9) for one in (("batch", seed, 60, 80), ("checkpoint",))]
        compacted = [("compact", True)] * 4
        play([*batches, *compacted, ("batch", 20, 9, 9), ("checkpoint",), ("start_prepared", 1)], steps, job)
        steps.watermark(0, 1000)
    assert advanced.total() == 0


@on(MEMORY, leaving(2))
def test_lists_and_maps_continue(backend, advanced):
    with test_collections_model.job_on(backend) as job:
        steps = test_collections_model.Steps(job)
        batches = [("batch", 1, 60), ("checkpoint",), ("batch", 2, 60), ("checkpoint",)]
        play([*batches, ("start_prepared", 1), ("batch", 3, 60), ("checkpoint",), ("start", 2)], steps, job)
        steps.look()
    assert advanced.total() == 1
