"""What a client's job handle makes of the answers of a cluster."""

import re

import pytest

from penstock.client import executors
from penstock.client.executors import ClusterExecutor, run_to_end
from penstock.client.handle import JobHandle, _verdict, absolute_uri
from penstock.core.clock import ManualClock
from penstock.core.errors import JobFailedError, NoJobManagerError, PenstockError, UsageError

DETAIL = "Traceback (most recent call last):\n  File ...\nValueError: no"


class Client:
    """Answers as a cluster whose only job has failed."""

    url = "http://127.0.0.1:1"

    def __init__(self, name, **entry):
        self.entry = {"exceptionName": name, **entry}

    def job_after(self, job_id, wait_ms):
        return {"state": "FAILED"}

    def exceptions(self, job_id):
        return {"root-exception": DETAIL, "exceptionHistory": {"entries": [self.entry]}}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("BadRecordError: topic orders: not JSON (mend it)", "BadRecordError: topic orders: not JSON (mend it)"),
        ("ValueError: no", "ValueError: no (PENSTOCK_TRACEBACK=1 prints all frames)"),
    ],
)
def test_a_failed_job_is_told_in_one_line_with_a_way_out(monkeypatch, line, said):
    monkeypatch.delenv("PENSTOCK_TRACEBACK", raising=False)
    with pytest.raises(JobFailedError) as raised:
        JobHandle(Client(line), "1", "totals").wait()
    assert str(raised.value) == f"job totals failed: {said}"


@pytest.mark.parametrize(
    ("embedded", "way"),
    [(False, "`penstock logs totals` prints its log"), (True, "PENSTOCK_TRACEBACK=1 prints all frames")],
)
def test_the_log_of_a_lost_worker_is_named_while_its_cluster_runs(monkeypatch, embedded, way):
    monkeypatch.delenv("PENSTOCK_TRACEBACK", raising=False)
    client = Client("worker w was lost", endpoint="w", taskName=None, stacktrace="its last lines")
    with pytest.raises(JobFailedError, match=f"worker w was lost .{way}."):
        JobHandle(client, "1", "totals", embedded=embedded).wait()


def test_a_suspended_job_is_waited_for():
    states = iter(["RUNNING", "SUSPENDED", "SUSPENDED", "RECONCILING", "FINISHED"])
    client, seen = Client(""), []
    client.job_after = lambda _job_id, _wait_ms: {"state": next(states)}
    job = JobHandle(client, "1", "totals", ManualClock())
    assert job.wait(on_poll=lambda found: seen.append(found["state"])) == "FINISHED"
    assert seen.count("SUSPENDED") == 2


def test_the_whole_traceback_comes_when_asked_for(monkeypatch):
    monkeypatch.setenv("PENSTOCK_TRACEBACK", "1")
    with pytest.raises(JobFailedError) as raised:
        JobHandle(Client("ValueError: no"), "1", "totals").wait()
    assert DETAIL in str(raised.value)


def test_the_users_lines_and_the_row_are_the_note_of_a_failed_job(monkeypatch):
    monkeypatch.delenv("PENSTOCK_TRACEBACK", raising=False)
    client = Client("ValueError: no")
    own = "In your code:\n  at f\nrow 2 of a batch of 3: user='b'"
    client.exceptions = lambda _: {"root-exception": f"{own}\n\nAll frames:\n  at g"}
    with pytest.raises(JobFailedError) as raised:
        JobHandle(client, "1", "totals").wait()
    assert raised.value.__notes__ == [own]


@pytest.mark.parametrize("uri", ["s3://bucket/sp", "file:///sp", "/sp", ""])
def test_whole_addresses_stay_as_they_are(uri):
    assert absolute_uri(uri) == uri


def test_a_relative_folder_becomes_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert absolute_uri("sp/one") == str(tmp_path / "sp" / "one")


class EndsFirst:
    """Answers as a cluster whose only job ends just before it is cancelled."""

    url = "http://127.0.0.1:1"

    def __init__(self):
        self.states = ["RUNNING", "FINISHED"]

    def job_after(self, job_id, wait_ms):
        return {"state": self.states.pop(0)}

    def cancel(self, job_id):
        raise UsageError("job 'collect' is FINISHED", hint="only a running job takes requests")

    def summary(self, job_id):
        return {}


def test_a_job_that_ends_before_it_is_cancelled_has_given_enough():
    handle = JobHandle(EndsFirst(), "1", "collect")
    assert run_to_end(handle, lambda *_: None, lambda: True).state == "FINISHED"


class Hangs:
    """Answers as a cluster whose only job runs until it is cancelled."""

    url = "http://127.0.0.1:1"

    def __init__(self, clock, **summary):
        self.clock, self.cancelled = clock, 0
        self.told = {"state": "RUNNING", "rows-read": {"orders": 3}, "waits-for": "", "slow-calls": [], **summary}

    def job_after(self, job_id, wait_ms):
        self.clock.advance(wait_ms)
        return {"state": "RUNNING"}

    def summary(self, job_id):
        return self.told

    def cancel(self, job_id):
        self.cancelled += 1


@pytest.mark.parametrize(
    ("timeout_ms", "summary", "said"),
    [
        (
            30_000,
            {"slow-calls": [{"what": "operator 'm' (0)", "since": 2_000, "at": "job.py:3 in endless"}]},
            r"^operator 'm' \(0\) has been in one call for 28 s, at job\.py:3 in endless \(change .*timeout=\)$",
        ),
        (30_000, {}, r"^it is RUNNING and has read 3 rows \(raise timeout=, or lower limit=\)$"),
        (
            2_000,
            {},
            r"^it is RUNNING and has read 3 rows \(.*; with at least 10 s the error names a function that does",
        ),
        (30_000, {"waits-for": "2 slots"}, r"^it is waiting for 2 slots \("),
    ],
)
def test_a_job_that_does_not_end_in_time_is_cancelled_and_its_error_says_what_it_does(timeout_ms, summary, said):
    clock = ManualClock(0)
    client = Hangs(clock, **summary)
    with pytest.raises(PenstockError) as raised:
        run_to_end(JobHandle(client, "1", "collect", clock), lambda *_: None, timeout_ms=timeout_ms)
    prefix = f"job collect did not end within {timeout_ms // 1000} s: "
    assert str(raised.value).startswith(prefix)
    assert re.search(said, str(raised.value).removeprefix(prefix)), raised.value
    assert client.cancelled == 1


class HasDoneAll(EndsFirst):
    """Answers as a cluster whose only job has gone on from a checkpoint after which there is nothing."""

    def summary(self, job_id):
        return {"rows-read": {"orders": 0}, "restarts": 0, "restored": {"id": 7, "taken": 0, "uri": ""}}


@pytest.mark.parametrize("on_poll", [None, lambda *_: None])
def test_a_plain_program_is_told_that_there_was_nothing_left_to_do(caplog, monkeypatch, on_poll):
    monkeypatch.setattr(executors.FailureWatch, "poll", lambda *_: [])
    monkeypatch.setattr(executors, "submit_graph", lambda *_: JobHandle(HasDoneAll(), "1", "totals"))
    assert ClusterExecutor(url="http://127.0.0.1:1", on_poll=on_poll).execute(None).nothing_left
    told = (
        "job totals had nothing left to do since checkpoint 7, taken 1970-01-01 00:00:00 UTC (penstock run"
        in caplog.text
    )
    assert told == (on_poll is None)


class Away:
    """A cluster whose JobManager is away for a number of polls; its only job ends then."""

    url = "http://127.0.0.1:1"

    def __init__(self, polls):
        self.left = polls

    def job_after(self, job_id, wait_ms):
        if self.left:
            self.left -= 1
            raise NoJobManagerError("no JobManager answers at http://127.0.0.1:1")
        return {"state": "FINISHED"}


@pytest.mark.parametrize(("polls", "lines"), [(4, 0), (200, 2)])
def test_a_jobmanager_that_does_not_answer_is_told_once_to_who_waits(caplog, polls, lines):
    assert JobHandle(Away(polls), "1", "totals", ManualClock()).wait() == "FINISHED"
    told = [record.message for record in caplog.records]
    assert len(told) == lines
    if lines:
        begun = "job totals: the JobManager at http://127.0.0.1:1 does not answer; trying again every 0.1 s; the job "
        assert told[0].startswith(begun)
        assert told[1] == "job totals: the JobManager answers again, after 20.0 s"


class Resumes:
    """Answers as a cluster whose only job is restored from a checkpoint."""

    def summary(self, job_id):
        return {"state": "CREATED", "waits-for": "", "restored": {"id": 7, "taken": 0, "uri": ""}}


def test_a_detached_submit_has_what_the_job_resumes_from(monkeypatch):
    monkeypatch.setattr(executors, "submit_graph", lambda *_: JobHandle(Resumes(), "1", "totals"))
    result = ClusterExecutor(url="http://127.0.0.1:1", detached=True).execute(None)
    assert result.resumed_from == "checkpoint 7, taken 1970-01-01 00:00:00 UTC"
    assert result.restored_checkpoint == 7


class RolledBack:
    """Answers as a cluster whose new version was rolled back after some failures."""

    url = "http://127.0.0.1:1"

    def __init__(self, failures):
        self.failures = failures

    def newest_upgrade(self, job_id):
        return {"restarts": {"seen": self.failures}}


@pytest.mark.parametrize(
    ("failures", "hint"),
    [
        (0, "see `penstock story live`"),
        (1, "see `penstock story live`, and the new version's failure with `penstock show live`"),
    ],
)
def test_a_rejected_version_that_never_failed_has_no_failure_to_show(failures, hint):
    with pytest.raises(PenstockError) as raised:
        _verdict(JobHandle(RolledBack(failures), "1", "live"), {"failure-cause": {"stack-trace": "not healthy"}})
    assert (raised.value.message, raised.value.hint) == ("job live was not upgraded: not healthy", hint)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda job: job.wait(timeout_ms="3s"), "timeout_ms='3s' .*milliseconds .*timeout_ms=3000"),
        (lambda job: job.stop(timeout_ms="2m"), "timeout_ms='2m' .*timeout_ms=120000"),
        (lambda job: job.rescale(2, timeout_ms=None), "timeout_ms=None is not a number of milliseconds"),
        (lambda job: job.savepoint(5), "target=5 is not a folder .*a path or a URI"),
    ],
)
def test_a_wrong_timeout_or_target_is_refused_with_the_right_form(call, words):
    with pytest.raises(UsageError, match=words):
        call(JobHandle(Client("no"), "1", "totals"))
