"""State that was loaded before its operator starts, and what a later checkpoint adds: the models agree.

The models' own histories have such starts too (`start_prepared`); here it is certain that the loaded state is used.
"""

import pytest
from tests.property import (
    test_collections_model,
    test_interval_join_model,
    test_process_model,
    test_rows_join_model,
    test_running_model,
    test_sessions_model,
    test_temporal_join_model,
    test_ttl_model,
    test_window_join_model,
    test_window_rows_model,
    test_windows_model,
)
from tests.property.harness.backends import DISK, FILES, MEMORY, leaving, leaving_for_rocksdb, on
from tests.property.harness.histories import end, play
from tests.property.harness.job import Job
from tests.property.harness.sides import Sides
from tests.property.running_models import Steps as RunningSteps
from tests.property.test_process_model import Steps as ProcessSteps
from tests.property.test_windows_model import Steps as WindowSteps

from penstock.core.elements import MAX_TIMESTAMP, TS_COLUMN


@pytest.fixture(autouse=True)
def advanced(monkeypatch):
    """How often a later checkpoint was added to loaded state, by kind of operator."""
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


@on(MEMORY, leaving(1), leaving_for_rocksdb(1))
@pytest.mark.parametrize("lateness", [0, 40])
def test_sessions_continue_without_those_that_ended(backend, lateness, advanced):
    with test_sessions_model.job_on(backend, 30, lateness, routed=False) as job:
        steps = test_sessions_model.Steps(job)
        closing = [("watermark", subtask, 350) for subtask in range(2)]
        begin = [("start", 2), ("batch", 1, 60), ("checkpoint",), ("batch", 2, 60), *closing, ("batch", 3, 60)]
        play([*begin, ("checkpoint",), ("start_prepared", 2), ("batch", 4, 60), ("checkpoint",)], steps, job)
        play([("batch", 5, 60), *closing, ("checkpoint",), ("start_prepared", 1)], steps, job)
        end(job, steps)
    assert advanced.total() == 3


@on(leaving(1))
def test_a_late_row_in_a_pane_of_ended_sessions_is_kept(backend, advanced):
    with test_sessions_model.job_on(backend, 30, 0, routed=False) as job:
        steps = test_sessions_model.Steps(job)
        play([("move", MEMORY), ("start", 1), ("move", backend)], steps, job)
        times = {key: [5, 25, 50, 75] for key in ("key-1", "key-2")} | {"key-3": [10]}
        steps.rows([_row(key, time) for key, some in times.items() for time in some])
        job.checkpoint()
        steps.mark(0, 90)  # the session of key-3 has ended, and panes up to 30 with it
        steps.rows([_row(key, 2) for key in ("key-1", "key-2")])
        job.checkpoint()
        play([("start_prepared", 1)], steps, job)
        steps.rows([_row("key-4", 90)])
        end(job, steps)
    assert advanced.total() == 1


@on(MEMORY, leaving(1), leaving_for_rocksdb(1))
@pytest.mark.parametrize("window", sorted(test_window_rows_model.WINDOWS))
def test_windows_of_rows_continue(backend, window, advanced):
    case = (test_window_rows_model.WINDOWS[window], ("count", 3, False, "count", 2), 60)
    with test_window_rows_model.job_on(backend, *case) as job:
        steps = test_window_rows_model.Steps(job)
        closing = [("watermark", subtask, 150) for subtask in range(2)]
        begin = [("start", 2), ("batch", 1, 40), ("checkpoint",), ("batch", 2, 40), *closing, ("checkpoint",)]
        play([*begin, ("start_prepared", 2), ("batch", 3, 40), ("checkpoint",), ("start", 1)], steps, job)
        end(job, steps)
    assert advanced.total() == 2


@on(MEMORY, FILES)
@pytest.mark.parametrize("name", test_running_model.EXPIRING)
def test_aggregates_of_a_time_to_live_expire_between_the_checkpoints(backend, name, advanced):
    with test_running_model.job_on(backend, name) as job:
        steps = RunningSteps(job)
        between = [("tick", 6_000), ("batch", 2, 5), ("checkpoint",), ("tick", 5_000)]
        play([("start", 2), ("batch", 1, 40), ("checkpoint",), *between, ("start_prepared", 2)], steps, job)
        steps.question()
        play([("batch", 3, 40), ("checkpoint",), ("start", 3)], steps, job)
        steps.question()
    assert advanced.total() == 2


@on(MEMORY, leaving(1), leaving_for_rocksdb(1))
def test_state_of_a_time_to_live_expires_before_and_between_the_checkpoints(backend, advanced):
    with test_ttl_model.job_on(backend) as job:
        steps = test_ttl_model.Steps(job)
        begin = [("start", 2), ("batch", 1, 40), ("tick", 7_000), ("batch", 2, 40), ("tick", 6_000), ("checkpoint",)]
        between = [("tick", 3_000), ("batch", 3, 20), ("checkpoint",), ("tick", 2_000)]
        play([*begin, *between, ("start_prepared", 2)], steps, job)
        steps.question()
        play([("look",), ("batch", 4, 40), ("checkpoint",), ("start", 3), ("look",)], steps, job)
    assert advanced.total() == 2


@on(MEMORY, leaving(1))
@pytest.mark.parametrize("starts", [1, 2])
def test_a_list_that_expired_and_began_again_between_the_checkpoints_is_the_new_one(backend, starts, advanced):
    with test_ttl_model.job_on(backend) as job:
        steps = test_ttl_model.Steps(job)
        play([("start", 1)] * starts, steps, job)
        steps.give([("key", "append", 3), ("", "append", 3)])
        job.checkpoint()
        steps.tick(test_ttl_model.TTL_MS)
        steps.give([("key", "append", 1), ("another key", "append", 1)])
        job.checkpoint()
        play([("start_prepared", 1)], steps, job)
        play([("question",), ("checkpoint",), ("start", 1), ("look",), ("question",)], steps, job)
    assert advanced.total() == 1


@on(MEMORY, leaving(1), leaving_for_rocksdb(1))
@pytest.mark.parametrize("kind", ["sessions", "windows of rows", "values, lists and maps"])
def test_further_checkpoints_are_added_one_after_the_other(backend, kind, advanced):
    passing = [[("mark", subtask, time) for subtask in range(2)] for time in (150, 300)]
    last = ("mark", 0, MAX_TIMESTAMP)
    if kind == "sessions":
        job = test_sessions_model.job_on(backend, 30, 40, routed=False)
        steps = test_sessions_model.Steps(job)
    elif kind == "windows of rows":
        sliding = next(iter(test_window_rows_model.WINDOWS.values()))
        job = test_window_rows_model.job_on(backend, sliding, ("count", 3, False, "count", 2), 60)
        steps = test_window_rows_model.Steps(job)
    else:
        job = test_ttl_model.job_on(backend)
        steps, passing, last = test_ttl_model.Steps(job), [[("tick", 4_000)]] * 2, ("look",)
    with job:
        begin = [("start", 2), ("batch", 1, 40), ("checkpoint",), ("batch", 2, 40), *passing[0], ("checkpoint",)]
        play([*begin, ("batch", 3, 40), *passing[1], ("checkpoint",), ("start_in_rounds", 2)], steps, job)
        play([("batch", 4, 40), ("checkpoint",), ("start", 1), ("batch", 5, 40), last], steps, job)
    assert advanced.total() == 4


JOINS = {
    "interval": lambda backend: test_interval_join_model.job_on(backend, -30, 20, "full", late=True),
    "window": lambda backend: test_window_join_model.job_on(backend, *test_window_join_model.KINDS[0]),
    "temporal": lambda backend: test_temporal_join_model.job_on(backend, "left", late=True),
    "sessions": lambda backend: test_rows_join_model.job_on(backend, *test_rows_join_model.SESSIONS[0]),
}


@on(MEMORY, DISK)
@pytest.mark.parametrize("name", JOINS)
def test_joins_continue_without_rows_that_can_meet_no_other(backend, name, advanced):
    with JOINS[name](backend) as job:
        steps = (test_rows_join_model.Steps if name == "sessions" else Sides)(job)
        closing = [("mark", subtask, 60) for subtask in range(2)]
        begin = [("start", 2), ("batch", 0, 1, 40), ("batch", 1, 2, 40), ("checkpoint",), ("batch", 0, 3, 40)]
        further = [*closing, ("checkpoint",), ("batch", 1, 4, 40), ("checkpoint",)]
        play([*begin, *further, ("start_in_rounds", 2), ("batch", 1, 5, 40)], steps, job)
        end(job, steps)
    assert advanced.total() == 4


def _row(key, time):
    return {"k": key, "v": 1, "x": 1.0, "t": "", TS_COLUMN: time}
