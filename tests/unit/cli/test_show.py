"""`penstock show` names what is wrong with a job: services without an answer, failures, replaced JobManagers."""

import contextlib

import pytest

from penstock.cli.running import jobs as module
from penstock.cli.running.job_report import story_lines, watermark_line

AT = 1_767_607_200_000  # 2026-01-05 10:00:00
COUNTED = "rows, restarts and checkpoints are counted from there, and checkpoint ids skip 1,000 each time"
SUMMARY = {
    "state": "RUNNING", "restarts": 0, "next-attempt-in-ms": None, "waits-for": "", "stopped-with": "",
    "bad-records": {}, "late-records": {}, "restored": None, "sources-unreachable": {}, "slow-calls": [],
    "jobmanagers-replaced": {"times": 0, "newest": None}, "rows-read": {"orders": 12_345}, "rows-written": {"out": 7},
    "rows-read-per-second": {"orders": 1_500.4}, "rows-written-per-second": {}, "watermark": None,
    "places": {"orders": "topic orders at b:9"}, "running-since": AT,
}  # fmt: skip
FAILURE = {
    "timestamp": AT, "taskName": "totals (1)", "exceptionName": "ValueError: x", "rolled-back": None,
    "stacktrace": "In your code:\n  at f\n\nAll frames:\n  at g",
}  # fmt: skip


class Client:
    """One job, whose summary and failures a test sets."""

    def __init__(self):
        self.told, self.entries = dict(SUMMARY), []

    def jobs(self):
        return [{"jid": "a" * 32, "name": "orders", "state": "RUNNING", "start-time": 1}]

    def job(self, job_id):
        vertex = {"name": "in", "parallelism": 2, "status": "RUNNING", "metrics": {}}
        return {"name": "orders", "jid": job_id, "state": "RUNNING", "start-time": AT, "vertices": [vertex]}

    def checkpoints(self, job_id):
        return {"counts": {"completed": 1, "failed": 0}, "latest": None}

    def exceptions(self, job_id):
        return {"exceptionHistory": {"entries": self.entries}}

    def summary(self, job_id):
        return self.told


@pytest.fixture
def client(monkeypatch):
    found = Client()
    monkeypatch.setattr(module, "connect", lambda _: contextlib.nullcontext(found))
    return found


def shown(capsys, **options):
    module.show("orders", **options)
    return capsys.readouterr().out.splitlines()


def test_a_job_without_problems_has_a_line_of_checkpoints_only(client, capsys):
    assert shown(capsys)[-1] == "checkpoints: 1 completed, 0 failed"


def test_rows_and_rates_of_sources_and_sinks_are_shown_with_their_places(client, capsys):
    client.told["bad-records"] = {"orders": 3}
    lines = [line.split() for line in shown(capsys)]
    assert ["source", "orders", "12,345", "1,500", "3", "topic", "orders", "at", "b:9"] in lines
    assert ["sink", "out", "7", "0"] in lines


def test_the_first_bad_record_of_a_source_is_shown(client, capsys):
    client.told |= {
        "bad-records": {"orders": 1},
        "bad-record-examples": {"orders": "x.jsonl line 4: not JSON; line: b'['"},
    }
    assert shown(capsys)[-1] == "source orders: 1 bad record; the first: x.jsonl line 4: not JSON; line: b'['"


@pytest.mark.parametrize(
    ("changes", "told"),
    [({}, False), ({"restarts": 2}, True), ({"jobmanagers-replaced": {"times": 1, "newest": AT}}, True)],
)
def test_rows_that_are_counted_since_a_restart_say_so(client, capsys, changes, told):
    client.told |= changes
    assert ("rows of vertices are counted since the last start, at 2026-01-05 10:00:00" in shown(capsys)) == told


@pytest.mark.parametrize(
    ("mark", "line"),
    [
        (None, "watermark: none yet"),
        (AT - 2_100, "watermark: 2026-01-05 09:59:57 UTC, lag 2.1 s"),
        (AT - 5 * 86_400_000, "watermark: 2025-12-31 10:00:00 UTC, lag 5.0 days"),
        (AT + 240_000, "watermark: 2026-01-05 10:04:00 UTC, 4.0 min ahead of the clock"),
        (float((1 << 63) // 1000), "watermark: end of input"),
    ],
)
def test_the_watermark_has_its_distance_from_the_clock(mark, line):
    assert watermark_line({"watermark": mark}, AT) == line


def test_sources_without_an_answer_and_slow_calls_are_named(client, capsys):
    client.told["sources-unreachable"] = {"orders": {"since": AT, "for-ms": 12_000, "place": "topic t at b:9"}}
    client.told["slow-calls"] = [{"what": "sink 'out' (0): w", "since": 5}]
    assert shown(capsys)[-2:] == [
        "source orders: no answer from topic t at b:9 since 2026-01-05 10:00:00 UTC; it resumes with the next answer",
        "slow call, more than 5 s: sink 'out' (0): w",
    ]


def test_the_last_failure_is_shown_with_the_users_frames_and_on_request_with_all(client, capsys):
    client.entries, client.told["restarts"] = [FAILURE], 1
    head = "last failure (at 2026-01-05 10:00:00, in totals (1), restart 1): ValueError: x"
    assert shown(capsys)[-4:] == [head, "In your code:", "  at f", "(all frames: penstock show --all)"]
    assert shown(capsys, all_frames=True)[-6:] == [head, "In your code:", "  at f", "", "All frames:", "  at g"]


def test_a_failure_outside_the_users_code_is_shown_by_its_line_or_whole(client, capsys):
    client.entries = [{**FAILURE, "stacktrace": "\n\nAll frames:\n  at g"}]
    assert shown(capsys)[-2:] == [
        "last failure (at 2026-01-05 10:00:00, in totals (1)): ValueError: x",
        "(all frames: penstock show --all)",
    ]
    client.entries = [{**FAILURE, "stacktrace": "last words of the worker"}]
    assert shown(capsys)[-1] == "last words of the worker"


def test_the_last_failure_of_a_version_that_was_rolled_back_says_so_and_has_its_own_lines(client, capsys):
    client.entries = [{**FAILURE, "rolled-back": AT + 1000}]
    *_, head, title, own, _ = shown(capsys)
    assert (title, own) == ("In your code:", "  at f")
    assert head == (
        "last failure (of the rejected version, rolled back at 2026-01-05 10:00:01; at 2026-01-05 10:00:00, "
        "in totals (1)): ValueError: x"
    )


@pytest.mark.parametrize(
    ("times", "newest", "told"),
    [
        (1, AT, f"JobManager replaced once, at 2026-01-05 10:00:00; {COUNTED}"),
        (3, AT, f"JobManager replaced 3 times, last at 2026-01-05 10:00:00; {COUNTED}"),
        (2, None, "JobManager replaced 2 times"),
    ],
)
def test_replaced_jobmanagers_are_counted(client, capsys, times, newest, told):
    client.told["jobmanagers-replaced"] = {"times": times, "newest": newest}
    assert shown(capsys)[-1] == told


def entry(job_id, generation, text):
    return {"at_ms": 0, "kind": "deploy", "text": text, "generation": generation, "job_id": job_id}


def test_a_story_separates_runs_and_their_jobmanagers():
    entries = [entry("a", 1, "one"), entry("a", 2, "two"), entry("b", 3, "three")]
    plain = "1970-01-01 00:00:00 deploy       "
    assert story_lines(entries) == [
        "--- run a", "--- generation 1", f"{plain}one", "--- generation 2 (a new JobManager)", f"{plain}two",
        "--- run b", f"{plain}three",
    ]  # fmt: skip
    assert story_lines(entries[2:]) == [f"{plain}three"]


def test_rows_that_are_written_and_not_published_are_named(client, capsys):
    client.told |= {"rows-written": {"out": 1_700}, "rows-unpublished": {"out": 1_200}}
    assert "sink out: 1,200 of 1,700 rows are not published yet" in shown(capsys)


def test_the_lag_of_an_ended_job_is_that_at_its_end():
    line = "watermark: 2026-01-05 10:00:00 UTC, lag 2.0 s when the job ended"
    assert watermark_line({"watermark": AT, "ended": AT + 2_000}, AT + 90_000) == line
