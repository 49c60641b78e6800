"""`penstock show` names what is wrong with a job: services without an answer, failures, replaced JobManagers."""

import contextlib

import pytest

from penstock.cli.running import jobs as module
from penstock.cli.running.job_report import story_lines, watermark_line
from penstock.core.clock import ManualClock
from penstock.core.errors import UsageError

AT = 1_767_607_200_000  # 2026-01-05 10:00:00
COUNTED = "rows, restarts and checkpoints are counted from there, and checkpoint ids skip 1,000 each time"
SUMMARY = {
    "state": "RUNNING", "restarts": 0, "next-attempt-in-ms": None, "waits-for": "", "stopped-with": "",
    "region-restart": "", "adaptive": None,
    "bad-records": {}, "late-records": {}, "restored": None, "sources-unreachable": {}, "slow-calls": [],
    "jobmanagers-replaced": {"times": 0, "newest": None}, "rows-read": {"orders": 12_345}, "rows-written": {"out": 7},
    "rows-read-per-second": {"orders": 1_500.4}, "rows-written-per-second": {}, "watermark": None,
    "places": {"orders": "topic orders at b:9"}, "running-since": AT, "version": "",
}  # fmt: skip
FAILURE = {
    "timestamp": AT, "taskName": "totals (1)", "exceptionName": "ValueError: x", "rolled-back": None,
    "stacktrace": "In your code:\n  at f\n\nAll frames:\n  at g",
}  # fmt: skip


class Client:
    """One job, whose summary and failures a test sets."""

    def __init__(self):
        self.told, self.entries, self.findings, self.latest, self.history = dict(SUMMARY), [], [], None, []
        self.state, self.waits_for, self.region_restart = "RUNNING", "", ""
        self.times = {"state": "RUNNING", "start-time": AT, "timestamps": {"RUNNING": AT}}

    def jobs(self):
        job = {"jid": "a" * 32, "name": "orders", "state": self.state, "start-time": 1, "tasks": {}, "restarts": 0}
        return [{**job, "stopped-with": "", "waits-for": self.waits_for, "region-restart": self.region_restart}]

    def job(self, job_id):
        vertex = {"name": "in", "parallelism": 2, "status": "RUNNING", "metrics": {}}
        return {"name": "orders", "jid": job_id, **self.times, "vertices": [vertex]}

    def checkpoints(self, job_id):
        return {"counts": {"completed": 1, "failed": 0}, "latest": self.latest, "history": self.history}

    def exceptions(self, job_id):
        return {"exceptionHistory": {"entries": self.entries}}

    def summary(self, job_id):
        return self.told

    def health(self, job_id):
        return {"findings": self.findings}


@pytest.fixture
def clock(monkeypatch):
    found = ManualClock(AT + 42_000)
    monkeypatch.setattr(module, "SystemClock", lambda: found)
    return found


@pytest.fixture
def client(monkeypatch):
    found = Client()
    monkeypatch.setattr(module, "connect", lambda _: contextlib.nullcontext(found))
    return found


def shown(capsys, **options):
    module.show("orders", **options)
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(("later_ms", "reason"), [(0, "the last failure, below"), (5_000, "ValueError: x")])
def test_a_checkpoint_that_failed_with_the_job_refers_to_its_failure(client, capsys, later_ms, reason):
    client.latest = {"failed": {"id": 7, "failure_timestamp": AT, "failure_message": "ValueError: x"}}
    client.entries = [{**FAILURE, "timestamp": AT + later_ms}]
    (line,) = (line for line in shown(capsys) if line.startswith("last failed checkpoint"))
    assert line.endswith(f": {reason}")


def test_the_version_of_an_upgraded_job_is_named_by_its_file(client, capsys):
    assert not [line for line in shown(capsys) if line.startswith("version")]
    client.told["version"] = "better[1].py"
    assert shown(capsys)[1] == "version: better[1].py"


def test_a_job_without_problems_has_a_line_of_checkpoints_only(client, capsys):
    assert shown(capsys)[-1] == "checkpoints: 1 completed, 0 failed"


@pytest.mark.parametrize(
    ("times", "told"),
    [
        ({}, "RUNNING since 2026-01-05 10:00:00"),
        ({"timestamps": {"RUNNING": AT + 9_000}}, "RUNNING since 2026-01-05 10:00:09, started 2026-01-05 10:00:00"),
        (
            {"state": "RESTARTING", "timestamps": {"RUNNING": AT, "RESTARTING": AT + 60_000}},
            "RESTARTING since 2026-01-05 10:01:00, started 2026-01-05 10:00:00",
        ),
        ({"state": "CREATED", "timestamps": {}}, "CREATED since 2026-01-05 10:00:00"),
    ],
)
def test_the_state_has_the_time_when_it_began(client, capsys, times, told):
    client.times |= times
    assert shown(capsys)[0] == f"orders {'a' * 32} {told}"


def test_a_job_in_the_list_that_waits_for_slots_says_so(client, capsys):
    client.state, client.waits_for = "RESTARTING", "9 slots, 4 of 6 are free (live holds 2)"
    module.list_jobs()
    *_, row, line = capsys.readouterr().out.splitlines()
    assert row.split()[:5] == ["orders", "RESTARTING", "(waits", "for", "slots)"]
    assert line == "orders is waiting for slots: it needs 9 slots, 4 of 6 are free (live holds 2)"


@pytest.mark.parametrize(
    ("slots", "line"),
    [
        (4, "runs with 4 of at most 8 slots; it takes more when they are free"),
        (8, "runs with 8 of at most 8 slots"),
    ],
)
def test_a_job_with_the_adaptive_scheduler_has_a_line_with_its_slots(client, capsys, slots, line):
    client.told["adaptive"] = {"slots": slots, "least": 2, "most": 8, "rescale-at": None}
    assert line in shown(capsys)


def test_a_region_that_restarts_is_shown_beside_the_state_and_in_the_report(client, capsys):
    client.region_restart = client.told["region-restart"] = "region of orders restarts: waiting for the manifest log"
    module.list_jobs()
    *_, row = capsys.readouterr().out.splitlines()
    assert "RUNNING (a region restarts)" in row
    assert shown(capsys)[-1] == client.region_restart


def test_the_newest_checkpoint_is_aligned_or_has_its_bytes_of_rows_in_flight(client, capsys):
    done = {"id": 7, "status": "COMPLETED", "latest_ack_timestamp": AT, "end_to_end_duration": 12}
    aligned, unaligned = ({**done, "unaligned": n > 0, "persisted_data": n} for n in (0, 1_234_567))
    client.latest, client.history = {"completed": aligned}, [aligned]
    newest = "checkpoints: 1 completed, 0 failed; newest 7 at 2026-01-05 10:00:00, 12 ms"
    assert shown(capsys)[-1] == f"{newest}, aligned"
    client.latest, client.history = {"completed": unaligned}, [unaligned, aligned]
    text = f"{newest}, unaligned, 1,234,567 bytes of rows in flight; 1 of the last 2 were unaligned"
    assert shown(capsys)[-1] == text


def test_rows_and_rates_of_sources_and_sinks_are_shown_with_their_places(client, capsys):
    client.told["bad-records"] = {"orders": 3}
    lines = [line.split() for line in shown(capsys)]
    assert ["source", "orders", "12,345", "1,500", "3", "topic", "orders", "at", "b:9"] in lines
    assert ["sink", "out", "7", "0"] in lines


def test_the_rows_that_a_source_has_not_read_are_shown_where_they_are_known(client, capsys):
    assert "unread" not in shown(capsys)[1].split()
    client.told["rows-unread"] = {"orders": 12_000}
    lines = [line.split() for line in shown(capsys)]
    assert lines[1] == ["uid", "rows", "rows/s", "unread", "bad", "records", "place"]
    client.told["rows-unread"] = {"orders": None}
    unknown = [line.split() for line in shown(capsys)]
    assert ["source", "orders", "12,345", "1,500", "-", "0", "topic", "orders", "at", "b:9"] in unknown
    assert ["source", "orders", "12,345", "1,500", "12,000", "0", "topic", "orders", "at", "b:9"] in lines
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


def test_a_watermark_that_is_missing_after_a_restart_is_not_said_to_be_the_first():
    assert watermark_line({"watermark": None, "restarts": 1}, AT) == "watermark: none since the restart"


def test_sources_without_an_answer_and_slow_calls_are_named(client, clock, capsys):
    client.told["sources-unreachable"] = {"orders": {"since": AT, "for-ms": 12_000, "place": "topic t at b:9"}}
    client.told["slow-calls"] = [{"what": "sink 'out' (0): w", "since": AT}]
    assert shown(capsys)[-2:] == [
        "source orders: no answer from topic t at b:9 since 2026-01-05 10:00:00 UTC; it resumes with the next answer",
        "slow call since 2026-01-05 10:00:00 UTC, 42 s so far: sink 'out' (0): w",
    ]
    clock.advance(60_000)
    assert shown(capsys)[-1].startswith("slow call since 2026-01-05 10:00:00 UTC, 102 s so far: ")


def test_the_slow_operator_is_named_and_what_is_well_is_not(client, capsys):
    text = "Its chain is busy 99 % of the time, 98 % of that in map-3."
    slow = {"kind": "limit", "level": "warn", "title": "map(score) is at its limit", "text": text, "vertex": "v"}
    away = {"kind": "source-unreachable", "level": "warn", "title": "Source in", "text": "", "vertex": ""}
    client.findings = [{**slow, "since": AT}, {**away, "since": AT}, {**slow, "level": "good", "since": AT}]
    line = f"map(score) is at its limit: {text} (since 2026-01-05 10:00:00 UTC)"
    assert [found for found in shown(capsys) if "score" in found or "Source in" in found] == [line]


def test_the_last_failure_is_shown_with_the_users_frames_and_on_request_with_all(client, capsys):
    client.entries, client.told["restarts"] = [FAILURE], 1
    head = "last failure (at 2026-01-05 10:00:00, in totals (1), restart 1): ValueError: x"
    assert shown(capsys)[-4:] == [head, "In your code:", "  at f", "(all frames: penstock show --all)"]
    assert shown(capsys, all_frames=True)[-6:] == [head, "In your code:", "  at f", "", "All frames:", "  at g"]


def of_row(number, row="user='a', amount=0"):
    row = f"row {number} of a batch of {number + 7}: {row}"
    return {**FAILURE, "stacktrace": f"In your code:\n  at f\nValueError: x\n{row}\n\nAll frames:\n  at g"}


def test_a_row_that_fails_each_time_is_told_with_the_restarts_that_are_left_and_the_way_out(client, capsys):
    client.entries, client.told["restarts"] = [of_row(1), of_row(4), of_row(9), of_row(1, "user='b'")], 4
    client.told["restarts-of-user-code"] = 10
    line = shown(capsys)[-1]
    way = "correct the function or catch the error in it, and run the file again; it resumes from the newest checkpoint"
    assert line == f"3 of 10 restarts, the same row each time: cancel the job, {way}"
    client.told["state"] = "FAILED"
    assert shown(capsys)[-1] == f"the same row failed 3 times: {way}"
    client.told |= {"state": "RUNNING", "restarts-of-user-code": None}
    assert shown(capsys)[-1].startswith("3 restarts, the same row each time: ")


@pytest.mark.parametrize("entries", [[of_row(1)], [of_row(1), of_row(1, "other")], [FAILURE, FAILURE]])
def test_failures_without_a_common_row_have_no_such_line(client, capsys, entries):
    client.entries = entries
    assert not any("the same row" in line for line in shown(capsys))


def test_a_failure_outside_the_users_code_is_shown_by_its_line_or_whole(client, capsys):
    client.entries = [{**FAILURE, "stacktrace": "\n\nAll frames:\n  at g"}]
    assert shown(capsys)[-2:] == [
        "last failure (at 2026-01-05 10:00:00, in totals (1)): ValueError: x",
        "(all frames: penstock show --all)",
    ]
    client.entries = [{**FAILURE, "stacktrace": "last words of the worker"}]
    assert shown(capsys)[-1] == "last words of the worker"


def test_the_failure_of_a_version_that_was_rolled_back_is_history_with_its_time_and_own_lines(client, capsys):
    client.entries, client.told["restarts"] = [{**FAILURE, "rolled-back": AT + 1000}], 2
    *_, head, title, own, _ = lines = shown(capsys)
    assert (title, own) == ("In your code:", "  at f")
    assert head == (
        "history: a rejected version was rolled back at 2026-01-05 10:00:01; it failed at 2026-01-05 10:00:00 "
        "in totals (1): ValueError: x"
    )
    assert not any("last failure" in line for line in lines)


def test_a_failure_of_the_present_version_follows_that_of_a_rejected_one(client, capsys):
    client.entries = [{**FAILURE, "rolled-back": AT + 1000}, {**FAILURE, "exceptionName": "KeyError: y"}]
    heads = [line.partition(" ")[0] for line in shown(capsys) if line.startswith(("history:", "last failure"))]
    assert heads == ["history:", "last"]
    client.entries = client.entries[1:] + client.entries[:1]
    assert not any(line.startswith("history:") for line in shown(capsys)), "something has happened since"


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


def checkpoint(number, seconds, generation=1):
    text = f"checkpoint {number} completed"
    return {"at_ms": 1000 * seconds, "kind": "checkpoint", "text": text, "generation": generation, "job_id": "a"}


def test_a_story_has_one_line_for_a_series_of_checkpoints():
    stop = {**checkpoint(49, 1), "text": "savepoint 49 of the stop completed"}
    many = [checkpoint(number, 10 * number) for number in range(12, 48)]
    entries = [entry("a", 1, "one"), *many, entry("a", 1, "two"), *many[:2], stop]
    assert [line[20:] for line in story_lines(entries)] == [
        "deploy       one",
        "checkpoint   checkpoints 12 to 47 completed, 36 in 5.8 min",
        "deploy       two",
        "checkpoint   checkpoint 12 completed",
        "checkpoint   checkpoint 13 completed",
        "checkpoint   savepoint 49 of the stop completed",
    ]
    split = story_lines([checkpoint(n, n, 1) for n in (1, 2, 3)] + [checkpoint(n, n, 2) for n in (4, 5, 6)])
    assert [line[20:] for line in split if "---" not in line] == [
        "checkpoint   checkpoints 1 to 3 completed, 3 in 2.0 s",
        "checkpoint   checkpoints 4 to 6 completed, 3 in 2.0 s",
    ]


def test_a_story_separates_jobs_and_their_jobmanagers():
    entries = [entry("a", 1, "one"), entry("a", 2, "two"), entry("b", 3, "three")]
    plain = "1970-01-01 00:00:00 deploy       "
    assert story_lines(entries) == [
        "--- job a",
        "--- leader of generation 1",
        f"{plain}one",
        "--- leader of generation 2 (a new JobManager)",
        f"{plain}two",
        "--- job b",
        f"{plain}three",
    ]
    assert story_lines(entries[2:]) == [f"{plain}three"]


def test_rows_that_are_written_and_not_published_are_named(client, capsys):
    client.told |= {"rows-written": {"out": 1_700}, "rows-unpublished": {"out": 1_200}}
    assert "sink out: 1,200 of 1,700 rows are not published yet" in shown(capsys)


def test_the_lag_of_an_ended_job_is_that_at_its_end():
    line = "watermark: 2026-01-05 10:00:00 UTC, lag 2.0 s when the job ended"
    assert watermark_line({"watermark": AT, "ended": AT + 2_000}, AT + 90_000) == line


@pytest.mark.parametrize(
    ("record", "cluster", "end"),
    [
        ({"directory": "/home/x/cluster"}, None, "; logs of the cluster's own processes are in /home/x/cluster)"),
        ({"directory": "/home/x/cluster"}, "http://h:1", "`penstock list` shows the jobs)"),
        (None, None, "`penstock list` shows the jobs)"),
    ],
)
def test_logs_without_a_job_says_where_those_of_the_local_cluster_are(monkeypatch, record, cluster, end):
    monkeypatch.setattr(module, "local_cluster", lambda _: record)
    with pytest.raises(UsageError, match="logs needs a job") as raised:
        module.logs(cluster=cluster)
    assert str(raised.value).endswith(end)
