"""What a client tells of a job's failures: each once, with the restart and the next attempt."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from penstock.client.failures import FailureWatch, bad_records, function_in_call, resume_point
from penstock.client.handle import JobHandle
from penstock.client.rest_client import RestClient
from penstock.core.errors import PenstockError

FIRST = {"timestamp": 100, "exceptionName": "UserFunctionError: map 'm': ValueError: x at job.py:3 in f"}
SECOND = {"timestamp": 200, "exceptionName": "worker w was lost: killed"}

#: A source that has had no answer since 2026-01-05 10:00:00.
AWAY = {"since": 1_767_607_200_000, "for-ms": 6_000, "place": "topic t at broker:9092"}


def summary(**changes):
    plain = {"state": "RUNNING", "restarts": 0, "next-attempt-in-ms": None, "waits-for": "", "checkpoints-completed": 0}
    return {**plain, "checkpoints-failed": 0, "checkpoint-failure": "", **changes}


@pytest.fixture
def job():
    """A job's handle whose failures a test sets, newest first."""
    entries = []
    client = SimpleNamespace(exceptions=lambda _: {"exceptionHistory": {"entries": entries}})
    command = lambda name: f"penstock {name} orders"
    return SimpleNamespace(name="orders", job_id="a", client=client, entries=entries, command=command, embedded=False)


def test_a_job_that_runs_has_nothing_to_tell(job):
    assert FailureWatch().poll(job, summary()) == []


def test_a_failure_is_told_once_with_the_next_attempt(job):
    watch = FailureWatch()
    job.entries.insert(0, FIRST)
    failed = summary(state="RESTARTING", restarts=1, **{"next-attempt-in-ms": 1600})
    (line,) = watch.poll(job, failed)
    assert line.startswith("orders failed: UserFunctionError: map 'm': ValueError: x at job.py:3 in f (restart 1, next")
    assert "next attempt in 1.6 s" in line
    assert "penstock show orders" in line
    assert watch.poll(job, failed) == []


def test_a_failure_from_before_the_attachment_has_its_time_and_a_later_one_has_not(job):
    watch = FailureWatch(attached=True)
    job.entries += [{**FIRST, "timestamp": 61_000}, FIRST]
    (line,) = watch.poll(job, summary(restarts=2))
    assert line.startswith(f"orders failed 2 times, last at 1970-01-01 00:01:01 UTC: {FIRST['exceptionName']} (restart")
    job.entries.insert(0, {**SECOND, "timestamp": 90_000})
    (line,) = watch.poll(job, summary(restarts=3))
    assert line.startswith(f"orders failed: {SECOND['exceptionName']} (restart 3")


def test_a_failure_after_the_attachment_to_a_job_without_failures_has_no_time(job):
    watch = FailureWatch(attached=True)
    assert watch.poll(job, summary()) == []
    job.entries.append(FIRST)
    (line,) = watch.poll(job, summary(restarts=1))
    assert line.startswith(f"orders failed: {FIRST['exceptionName']} (restart 1")


def test_failures_between_two_looks_are_told_in_their_order(job):
    watch = FailureWatch()
    job.entries += [SECOND, FIRST]
    first, second = watch.poll(job, summary(restarts=2))
    assert first == f"orders failed: {FIRST['exceptionName']}"
    assert second.startswith(f"orders failed: {SECOND['exceptionName']} (restart 2, it runs again;")


SAVEPOINT = {"id": 7, "taken": 0, "uri": "s3://b/sp"}
CHECKPOINT = {"id": 7, "taken": 0, "uri": ""}


@pytest.mark.parametrize(
    ("state", "completed", "restored", "after"),
    [
        ("RUNNING", 9, CHECKPOINT, "it runs again, from checkpoint 7;"),
        ("RUNNING", 9, SAVEPOINT, "it runs again, from savepoint s3://b/sp;"),
        ("RESTARTING", 0, SAVEPOINT, "next attempt in 1.6 s, from savepoint s3://b/sp;"),
        ("RESTARTING", 9, CHECKPOINT, "next attempt in 1.6 s, from its newest checkpoint;"),
        ("RESTARTING", 9, None, "next attempt in 1.6 s, from its newest checkpoint;"),
        ("RESTARTING", 0, None, "next attempt in 1.6 s;"),
        ("FAILED", 9, CHECKPOINT, "the job has failed;"),
    ],
)
def test_a_failure_is_told_with_what_the_job_resumes_from(job, state, completed, restored, after):
    job.entries.append(FIRST)
    soon_ms = 1_600 if state == "RESTARTING" else None
    counts = {"next-attempt-in-ms": soon_ms, "checkpoints-completed": completed}
    (line,) = FailureWatch().poll(job, summary(state=state, restarts=1, restored=restored, **counts))
    assert f"(restart 1, {after}" in line


def test_the_same_failure_again_and_again_between_two_looks_is_one_line(job):
    job.entries += [{**FIRST, "timestamp": 300}, {**FIRST, "timestamp": 200}, FIRST]
    (line,) = FailureWatch().poll(job, summary(restarts=3))
    assert line.startswith(f"orders failed 3 times: {FIRST['exceptionName']} (restart 3, ")


def test_the_users_lines_and_the_row_follow_and_are_not_repeated_at_each_restart(job):
    watch, own = FailureWatch(), "In your code:\n  at f\nrow 2 of a batch of 3: user='b'"
    job.entries.insert(0, {**FIRST, "stacktrace": f"{own}\n\nAll frames:\n  at g"})
    assert watch.poll(job, summary(restarts=1))[1:] == [own]
    job.entries.insert(0, {**job.entries[0], "timestamp": 200})
    assert len(watch.poll(job, summary(restarts=2))) == 1
    other = own.replace("'b'", "'c'")
    job.entries.insert(0, {**FIRST, "timestamp": 300, "stacktrace": f"{other}\n\nAll frames:\n  at g"})
    assert watch.poll(job, summary(restarts=3))[1:] == [other]


def test_failures_under_a_new_jobmanager_are_told_although_its_counts_begin_anew(job):
    watch, failed = FailureWatch(), {"checkpoint-failure": "checkpoint 7: no space"}
    job.entries[:] = [SECOND, FIRST]
    watch.poll(job, summary(restarts=2, **{"checkpoints-failed": 2}, **failed))
    assert watch.poll(job, summary()) == []
    job.entries[:] = [{**FIRST, "timestamp": 300}]
    restarted, missed = watch.poll(job, summary(restarts=1, **{"checkpoints-failed": 1}, **failed))
    assert restarted.startswith(f"orders failed: {FIRST['exceptionName']} (restart 1, ")
    assert missed == "orders: a checkpoint failed: checkpoint 7: no space"


def test_a_failure_is_told_later_if_nobody_answers_now(job):
    watch = FailureWatch()

    def away(_):
        raise PenstockError("no JobManager answers")

    answers, job.client.exceptions = job.client.exceptions, away
    job.entries.append(FIRST)
    assert watch.poll(job, summary(restarts=1)) == []
    job.client.exceptions = answers
    assert len(watch.poll(job, summary(restarts=1))) == 1


def test_a_source_without_an_answer_is_told_once_in_each_outage(job):
    watch, away = FailureWatch(), summary(**{"sources-unreachable": {"in": AWAY}})
    place = "topic t at broker:9092"
    told = [f"orders: source in: no answer from {place} since 2026-01-05 10:00:00 UTC; it resumes with the next answer"]
    back = [f"orders: source in: {place} answers again, after about 6 s"]
    assert [watch.poll(job, s) for s in (summary(), away, away, summary(), away)] == [[], told, [], back, told]


SLOW = "slow call since 1970-01-01 00:00:00 UTC"


def test_the_end_of_a_slow_call_is_told(job):
    watch, slow = FailureWatch(), summary(**{"slow-calls": [{"what": "sink 'out' (0): w", "since": 5}]})
    begun, ended = f"orders: {SLOW}: sink 'out' (0): w", "orders: slow call ended: sink 'out' (0): w"
    assert [watch.poll(job, s) for s in (slow, slow, summary())] == [[begun], [], [ended]]


def test_a_slow_call_of_a_recovery_is_told_once(job):
    call = {"what": "sink 'out' (0): w", "since": 5}
    recovering = summary(state="RESTARTING", restarts=1, **{"slow-calls": [call]})
    begun, ended = f"orders: {SLOW}: sink 'out' (0): w", "orders: slow call ended: sink 'out' (0): w"
    watch = FailureWatch()
    looks = (recovering, recovering, summary(restarts=1, **{"slow-calls": [call]}), summary(restarts=1))
    assert [watch.poll(job, s) for s in looks] == [[begun], [], [], [ended]]


def test_the_same_call_of_another_worker_is_told_and_has_not_ended(job):
    first, second = ({"slow-calls": [{"what": "sink 'out' (0): w", "since": since}]} for since in (5, 7_000))
    watch = FailureWatch()
    looks = (summary(**first), summary(state="CANCELLING", **first), summary(state="RESTARTING", **second))
    told = [watch.poll(job, s) for s in looks]
    again = "orders: slow call since 1970-01-01 00:00:07 UTC: sink 'out' (0): w"
    assert told == [[f"orders: {SLOW}: sink 'out' (0): w"], [], [again]]


def test_a_function_that_does_not_return_is_told_once_until_it_does_even_if_its_line_changes(job):
    call = {"what": "operator 'map-3' (0)", "since": 5, "at": "hang.py:11 in lookup"}
    first, moved = summary(**{"slow-calls": [call]}), summary(**{"slow-calls": [{**call, "at": "hang.py:12 in wait"}]})
    watch = FailureWatch()
    begun = "orders: operator 'map-3' (0) has been in one call since 1970-01-01 00:00:00 UTC, at hang.py:11 in lookup"
    ended = "orders: slow call ended: operator 'map-3' (0)"
    assert [watch.poll(job, s) for s in (first, moved, summary())] == [[begun], [], [ended]]


def test_of_functions_that_do_not_return_the_longest_is_told():
    external = {"what": "sink 'out' (0): w", "since": 0, "at": ""}
    calls = [external] + [{"what": f"operator 'm' ({n})", "since": 9_000 - n, "at": f"a.py:{n} in f"} for n in (1, 2)]
    told = function_in_call({"slow-calls": calls}, 20_998)
    assert told == "operator 'm' (2) has been in one call for 12 s, at a.py:2 in f"
    assert not function_in_call({"slow-calls": [external]}, 20_998)


@pytest.mark.parametrize(
    "changes", [{"restarts": 1}, {"state": "RESTARTING"}, {"jobmanagers-replaced": {"times": 1, "newest": 5}}]
)
def test_new_workers_are_no_sign_that_a_source_answers_again(job, changes):
    watch = FailureWatch()
    watch.poll(job, summary(**{"sources-unreachable": {"in": AWAY}}))
    assert not any("answers again" in line for line in watch.poll(job, summary(**changes)))


@pytest.mark.parametrize(
    ("state", "after"),
    [("RESTARTING", "it is restarting"), ("FINISHED", "it has finished since"), ("FAILED", "the job has failed")],
)
def test_what_follows_a_failure_is_told_by_the_state(job, state, after):
    job.entries.append(FIRST)
    (line,) = FailureWatch().poll(job, summary(state=state, restarts=1))
    assert f"(restart 1, {after}; see `penstock show orders`)" in line


@pytest.mark.parametrize(
    ("state", "way"),
    [("RUNNING", "it runs again; see `penstock show orders` while it runs)"), ("FAILED", "has failed)")],
)
def test_no_command_is_named_for_a_job_that_ended_with_its_cluster(job, state, way):
    job.embedded = True
    job.entries.append(FIRST)
    (line,) = FailureWatch().poll(job, summary(state=state, restarts=1))
    assert line.endswith(way)


def test_commands_name_the_cluster_that_the_command_line_does_not_find():
    handle = JobHandle(RestClient("http://127.0.0.1:9"), "a", "my orders", cluster="http://127.0.0.1:9")
    assert handle.command("show") == "penstock show 'my orders' --cluster http://127.0.0.1:9"
    assert replace(handle, cluster="").command("stop") == "penstock stop 'my orders'"


def test_rows_that_do_not_move_the_watermark_are_told_once(job):
    watch, ahead = FailureWatch(), summary(**{"future-times": {"in": 2_000}})
    (line,) = watch.poll(job, ahead)
    assert line.startswith("2,000 rows of in are ahead of the clock by more than the future limit, so that they do not")
    assert watch.poll(job, ahead) == []


def test_a_failure_of_the_rejected_version_is_told_as_such(job):
    job.entries.append({**FIRST, "rolled-back": 500})
    (line,) = FailureWatch().poll(job, summary(restarts=1))
    assert line.startswith("the rejected version of orders failed: UserFunctionError")


def test_a_replaced_jobmanager_is_told_once(job):
    watch = FailureWatch()
    looks = [summary(**{"jobmanagers-replaced": {"times": n, "newest": 5}}) for n in (1, 1, 2, 2)]
    told = ["orders: a new JobManager leads the job; restarts, checkpoints and rows are counted from there"]
    assert [watch.poll(job, look) for look in looks] == [[], [], told, []]


def test_a_replaced_jobmanager_is_told_with_what_the_job_resumed_from(job):
    watch, replaced = FailureWatch(), {"jobmanagers-replaced": {"times": 1, "newest": 5}}
    restored = {"restored": {"id": 7, "taken": 0, "uri": ""}}
    looks = [summary(), summary(state="CREATED", **replaced), summary(**replaced, **restored)]
    told = "orders: a new JobManager leads the job; the job resumed from checkpoint 7, taken 1970-01-01 00:00:00 UTC; "
    assert [watch.poll(job, look) for look in looks] == [
        [], [], [f"{told}restarts, checkpoints and rows are counted from there"]
    ]  # fmt: skip


def test_bad_records_are_told_once_by_source(job):
    example = "topic t partition 0 offset 7: not JSON; value: b'x'"
    watch, bad = FailureWatch(), {"bad-records": {"in": 1_200}, "bad-record-examples": {"in": example}}
    (line,) = watch.poll(job, summary(**bad))
    assert line == f"orders: source in: 1,200 bad records; the first: {example}; see `{job.command('show')}`"
    assert watch.poll(job, summary(**{"bad-records": {"in": 1_300}})) == []


@pytest.mark.parametrize(
    ("looked", "count"),
    [
        ({"restarts": 1}, "2 bad records"),
        ({"jobmanagers-replaced": {"times": 1}}, "2 bad records since its JobManager was replaced"),
    ],
)
def test_the_count_of_bad_records_goes_on_over_a_restart_and_their_example_does_not(looked, count):
    found = bad_records({"bad-records": {"in": 2}, "bad-record-examples": {"in": "offset 9"}, **looked})
    assert found == {"in": f"source in: {count}; the first since the last restart: offset 9"}


def test_calls_that_take_long_are_told_once(job):
    watch, slow = FailureWatch(), summary(**{"slow-calls": [{"what": "sink 'out' (0): publishing", "since": 5}]})
    told = [f"orders: {SLOW}: sink 'out' (0): publishing"]
    assert [watch.poll(job, s) for s in (summary(), slow, slow)] == [[], told, []]


def test_times_before_1990_are_told_once_with_the_settings(job):
    watch = FailureWatch()
    odd = summary(**{"doubtful-times": {"payments": {"rows": 1200, "example": 1_700_000_000}}})
    (line,) = watch.poll(job, odd)
    assert line.startswith("1,200 rows of payments have event times before 1990, such as 1970-01-20 16:13:20: if they ")
    assert "declare the field as int and set unit='s' on the watermark strategy" in line
    assert line.endswith("(KafkaSource and FileSource also take timestamp_unit='s')")
    hidden = summary(**{"doubtful-times": {"payments": {"rows": 1200, "example": None}}})
    (line,) = FailureWatch().poll(job, hidden)
    assert line.startswith("1,200 rows of payments have event times before 1990: if they are seconds")
    assert watch.poll(job, odd) == []


def test_times_after_2100_are_told_once_beside_those_before_1990(job):
    watch = FailureWatch()
    old, far = {"rows": 3, "example": 0}, {"rows": 1200, "example": 5_000_000_000_000}
    assert len(watch.poll(job, summary(**{"doubtful-times": {"payments": old}}))) == 1
    both = summary(**{"doubtful-times": {"payments": old}, "distant-times": {"payments": far}})
    (line,) = watch.poll(job, both)
    assert line.startswith(
        "1,200 rows of payments have event times after 2100, such as 2128-06-11 08:53:20: check the field"
    )
    assert watch.poll(job, both) == []


def test_a_failed_checkpoint_and_slots_that_are_waited_for_are_told_once(job):
    watch = FailureWatch()
    troubled = summary(**{
        "checkpoints-failed": 1,
        "checkpoint-failure": "checkpoint 7: declined by w: OSError: no space left on device",
        "waits-for": "9 slots, 4 of 6 are free",
    })  # fmt: skip
    assert watch.poll(job, troubled) == [
        "orders: a checkpoint failed: checkpoint 7: declined by w: OSError: no space left on device",
        "orders is waiting for slots: it needs 9 slots, 4 of 6 are free",
    ]
    assert watch.poll(job, troubled) == []


def test_a_checkpoint_that_fails_the_job_is_told_with_the_job(job):
    watch, reason = FailureWatch(), "declined by w: no space left on device"
    job.entries.append({**FIRST, "exceptionName": f"checkpoint 7 failed: {reason}"})
    (line,) = watch.poll(
        job, summary(restarts=1, **{"checkpoints-failed": 1, "checkpoint-failure": f"checkpoint 7: {reason}"})
    )
    assert line.startswith(f"orders failed: checkpoint 7 failed: {reason}")


@pytest.mark.parametrize(
    ("restored", "told"),
    [
        (None, ""),
        ({"id": 7, "taken": 1_764_064_800_000, "uri": ""}, "checkpoint 7, taken 2025-11-25 10:00:00 UTC"),
        (
            {"id": 7, "taken": 1_764_064_800_000, "uri": "s3://b/sp"},
            "savepoint s3://b/sp (checkpoint 7, taken 2025-11-25 10:00:00 UTC)",
        ),
    ],
)
def test_what_a_job_starts_from(restored, told):
    assert resume_point(summary(restored=restored)) == told
