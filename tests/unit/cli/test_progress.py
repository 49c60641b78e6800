"""The totals that `penstock run` prints for an interrupted job."""

from types import SimpleNamespace

import pytest

from penstock.cli.progress import JobProgress
from penstock.core.clock import ManualClock

SUMMARY = {
    "state": "RUNNING",
    "restarts": 0,
    "next-attempt-in-ms": None,
    "waits-for": "",
    "checkpoints-failed": 0,
    "source-records": 30,
    "records-out": 20,
    "watermark": None,
    "restored": None,
    "checkpoint-failure": "",
    "rows-read": {"orders": 30},
    "rows-written": {"out": 20},
    "rows-read-per-second": {"orders": 1_200.4, "people": 34.0},
    "checkpoints-completed": 1,
}


@pytest.mark.parametrize(
    ("completed", "end"),
    [
        (0, "  the next run starts from the beginning"),
        (4, "  the next run resumes from its newest checkpoint; --fresh starts over"),
    ],
)
def test_an_interrupted_job_has_its_totals_and_where_it_continues(capsys, completed, end):
    client = SimpleNamespace(summary=lambda _: {**SUMMARY, "checkpoints-completed": completed})
    progress = JobProgress(clock=ManualClock())
    progress.on_poll(SimpleNamespace(client=client, job_id="1", name="totals"), {"name": "totals", "state": "RUNNING"})
    assert progress.so_far() == ["totals was interrupted", "  read 30 rows from orders", "  wrote 20 rows to out", end]


def test_the_rate_is_the_one_that_the_sources_measure(capsys):
    client = SimpleNamespace(summary=lambda _: SUMMARY)
    job = SimpleNamespace(client=client, job_id="1", name="totals")
    JobProgress(clock=ManualClock()).on_poll(job, {"name": "totals", "state": "RUNNING"})
    assert "totals RUNNING: 30 records read (1,234/s), 20 rows out" in capsys.readouterr().out


@pytest.mark.parametrize(("people", "told"), [(345, "12,345 unread"), (None, "unread unknown")])
def test_the_rows_that_sources_have_not_read_are_added_up_once_all_are_known(capsys, people, told):
    client = SimpleNamespace(summary=lambda _: {**SUMMARY, "rows-unread": {"orders": 12_000, "people": people}})
    job = SimpleNamespace(client=client, job_id="1", name="totals")
    JobProgress(clock=ManualClock()).on_poll(job, {"name": "totals", "state": "RUNNING"})
    assert f"totals RUNNING: 30 records read (1,234/s), {told}, 20 rows out" in capsys.readouterr().out


def test_a_function_that_does_not_return_is_in_each_line_with_its_time(capsys):
    call = {"what": "operator 'map-3' (0)", "since": 1_000, "at": "hang.py:11 in lookup"}
    client = SimpleNamespace(
        summary=lambda _: {**SUMMARY, "slow-calls": [call]}, exceptions=lambda _: {"exceptionHistory": {"entries": []}}
    )
    job, clock = SimpleNamespace(client=client, job_id="1", name="totals"), ManualClock(8_000)
    progress = JobProgress(clock=clock)
    for _ in range(2):
        progress.on_poll(job, {"name": "totals", "state": "RUNNING"})
        clock.advance(2_000)
    text = capsys.readouterr().out
    for seconds in (7, 9):
        assert f"restarts 0; operator 'map-3' (0) has been in one call for {seconds} s, at hang.py:11 in lookup" in text


def test_a_job_without_an_answer_of_its_broker_says_so_once_while_its_checkpoints_continue(capsys):
    changes = [{}, {"checkpoints-completed": 2}, {"checkpoints-completed": 3}, {"source-records": 40}]
    summaries = iter([{**SUMMARY, **change} for change in changes])
    client = SimpleNamespace(summary=lambda _: next(summaries))
    job, clock = SimpleNamespace(client=client, job_id="1", name="totals"), ManualClock(8_000)
    progress = JobProgress(clock=clock)
    for _ in changes:
        progress.on_poll(job, {"name": "totals", "state": "RUNNING"})
        clock.advance(2_000)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[1].split()[0] for line in lines] == ["30", "40"]
    assert "checkpoints 1 (0 failed), restarts 0" in lines[0]


def test_the_watermark_has_a_date_unless_it_is_of_today(capsys):
    clock = ManualClock()
    midnight = clock.now_ms() // 86_400_000 * 86_400_000
    for watermark, text in ((midnight, "00:00:00.000"), (midnight - 1, "2023-11-13 23:59:59.999"), (9e18, "end")):
        client = SimpleNamespace(summary=lambda _, at=watermark: {**SUMMARY, "watermark": at})
        progress = JobProgress(clock=clock)
        progress.on_poll(SimpleNamespace(client=client, job_id="1", name="t"), {"name": "t", "state": "RUNNING"})
        assert f"watermark {text}, checkpoints" in capsys.readouterr().out


def lines_of(capsys, summaries, every_ms):
    """Return the plain lines of a display that looks at a job every `every_ms`."""
    left = iter(summaries)
    client = SimpleNamespace(summary=lambda _: next(left))
    job, clock = SimpleNamespace(client=client, job_id="1", name="totals"), ManualClock(0)
    progress = JobProgress(clock=clock)
    for _ in summaries:
        progress.on_poll(job, {"name": "totals", "state": "RUNNING"})
        clock.advance(every_ms)
    return capsys.readouterr().out.splitlines()


def test_a_job_that_waits_for_input_has_a_line_every_half_minute(capsys):
    lines = lines_of(capsys, [{**SUMMARY, "checkpoints-completed": n} for n in range(14)], 5_000)
    assert [line.split("checkpoints ")[1].split()[0] for line in lines] == ["0", "6", "12"]


def test_a_slow_checkpoint_is_reported_once(capsys):
    def checkpoint(number, since_ms):
        missing = [{"name": "map", "subtask": 1, "parallelism": 2, "back-pressured": True}]
        entry = {"kind": "checkpoint", "acknowledged": 1, "total": 2, "missing": missing}
        return {**SUMMARY, "checkpoint-in-progress": {**entry, "id": number, "since": since_ms}}

    slow = [checkpoint(7, -20_000)] * 3 + [checkpoint(8, 15_000)] * 6
    lines = [line for line in lines_of(capsys, slow, 5_000) if "slow" in line]
    text = "is slow, since {} UTC: 1 of 2 subtasks acknowledged; missing: map 2/2 (back-pressured)"
    assert lines == [
        f"totals: checkpoint 7 {text.format('1969-12-31 23:59:40')}",
        f"totals: checkpoint 8 {text.format('1970-01-01 00:00:15')}",
    ]


def test_steps_before_the_job_are_printed_at_once(capsys):
    progress = JobProgress(clock=ManualClock())
    progress.step("reading totals.py")
    assert capsys.readouterr().out == "reading totals.py\n"
    progress.note("a line of the display")
    progress.step("submitting totals")
    JobProgress(enabled=False).step("for a machine")
    assert capsys.readouterr().out == "a line of the display\nsubmitting totals\n"


def test_a_job_that_never_began_has_no_totals():
    assert JobProgress().so_far() == []
