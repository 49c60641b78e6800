"""Which partition is named, since when and why."""

import asyncio

import msgspec
import pytest

from penstock.config.settings import JobSettings
from penstock.core.errors import PenstockError
from penstock.jobmanager.messages.views import (
    JobDetail,
    JobSummary,
    OperatorView,
    SlowCallView,
    SubtaskView,
    VertexView,
)
from penstock.jobmanager.observe.live_state import explain_watermark, watermark_holder_of

NOW = 1_000_000
SUMMARY = JobSummary(
    job_id="1" * 32, name="job", state="RUNNING", run_id="r", start_ms=5, end_ms=-1, last_modified_ms=6, tasks={},
    restarts=0,
)  # fmt: skip


def vertex(uid, *metrics):
    return VertexView(
        id=f"v-{uid}", name=uid, parallelism=len(metrics), max_parallelism=8, state="RUNNING",
        operators=(OperatorView(uid=uid, name=uid, kind="k", place="topic t at b:9"),),
        subtasks=tuple(SubtaskView(subtask=i, state="RUNNING", attempt=0, metrics=m) for i, m in enumerate(metrics)),
    )  # fmt: skip


JOB = JobDetail(
    summary=SUMMARY,
    vertices=(vertex("a", {}, {}), vertex("b", {}), vertex("w", {"currentInputWatermark": 50.0})),
    edges=(), settings=JobSettings(), timestamps={},
)  # fmt: skip


def split(name, watermark, standing=5_000, quiet=100, **flags):
    values = {"id": name, "watermark": watermark, "idle": False, "finished": False}
    return {**values, "standing-ms": standing, "quiet-ms": quiet, **flags}


def part(uid, subtask, *splits, idle=False):
    marks = [s["watermark"] for s in splits]
    lowest = None if None in marks or not marks else min(marks)
    return {
        "uid": uid, "subtask": subtask, "watermark": lowest, "idle": idle, "count": len(splits), "splits": list(splits),
    }  # fmt: skip


def test_the_lowest_that_counts_is_named_over_all_sources_and_subtasks():
    parts = [
        part("a", 0, split("p0", 70), split("p1", 10, idle=True)),
        part("a", 1, split("p2", 60), split("p3", 5, finished=True)),
        part("b", 0, split("q0", 65)),
    ]
    found = explain_watermark(JOB, parts, NOW)
    held = found["held-by"]
    assert (held["split"], held["uid"], held["subtask"], held["vertex"]) == ("p2", "a", 1, "v-a")
    assert (held["watermark"], held["since"], held["moving"]) == (60, NOW - 5_000, False)
    assert "p2 of source a (subtask 1)" in found["text"]
    assert [s["id"] for s in found["sources"][0]["splits"]] == ["p2", "p0", "p1", "p3"]
    assert [v["watermark"] for v in found["vertices"]] == [None, None, 50]


def test_one_without_any_watermark_is_before_all():
    found = explain_watermark(JOB, [part("a", 0, split("p0", 1), split("p1", None))], NOW)
    assert found["held-by"]["split"] == "p1"
    assert found["sources"][0]["watermark"] is None


@pytest.mark.parametrize(
    ("what", "pressed", "why"),
    [
        (split("p", 1, standing=500), 0, "it advances, and no other partition has a lower watermark"),
        (split("p", 1, quiet=60_000), 0, "no rows from it for 60 s; an idle timeout"),
        (split("p", None), 0, "none has produced a watermark"),
        (split("p", 1), 0, "event times do not advance"),
        (split("p", 1, quiet=60_000), 900, "back-pressured 90%"),
    ],
)
def test_why(what, pressed, why):
    job = msgspec.structs.replace(JOB, vertices=(vertex("a", {"backPressuredTimeMsPerSecond": float(pressed)}),))
    assert why in explain_watermark(job, [part("a", 0, what)], NOW)["held-by"]["why"]


AWAY = {"sourceUnreachableMs": 12_300.0, "sourceUnreachableSince": 987_700.0}
SINCE = "since 1970-01-01 00:16:27 UTC"


def test_a_source_without_an_answer_is_the_reason_and_not_a_quiet_partition():
    job = msgspec.structs.replace(JOB, vertices=(vertex("a", {}, AWAY), vertex("b", {})))
    found = explain_watermark(job, [part("a", 1, split("p", 1, quiet=14_000)), part("b", 0, split("q", 9))], NOW)
    why = found["held-by"]["why"]
    way = "it resumes with the next one; check that its external system is reachable"
    assert why == f"its source has had no answer from topic t at b:9 for 12 s, {SINCE}; {way}"
    assert found["text"] == f"p of source a (subtask 1): {why}"
    assert [source["unreachable-ms"] for source in found["sources"]] == [12_300, 0]


def test_a_source_that_is_back_pressured_does_not_ask_for_rows():
    job = msgspec.structs.replace(JOB, vertices=(vertex("a", {**AWAY, "backPressuredTimeMsPerSecond": 900.0}),))
    assert "back-pressured" in explain_watermark(job, [part("a", 0, split("p", 1))], NOW)["held-by"]["why"]


def test_a_source_without_an_answer_is_named_when_all_its_splits_are_idle():
    job = msgspec.structs.replace(JOB, vertices=(vertex("a", AWAY),))
    found = explain_watermark(job, [part("a", 0, split("p", 1, idle=True), idle=True)], NOW)
    silence = f"source a has had no answer from topic t at b:9 for 12 s, {SINCE}"
    assert found["text"].endswith(f"nothing holds the watermark back; {silence}")


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ([], "no source of this job has event time"),
        ([part("a", 0, split("p", 1, finished=True))], "all input is read"),
        ([part("a", 0, split("p", 1, idle=True), idle=True)], "nothing holds the watermark back"),
    ],
)
def test_nothing_holds_it_back(parts, text):
    found = explain_watermark(JOB, parts, NOW)
    assert found["held-by"] is None
    assert text in found["text"]


@pytest.mark.parametrize(
    ("metrics", "why"),
    [
        (
            {"busyTimeMsPerSecond": 998.0, "recordsLag": 3_120.0},
            "its source is held up by its own chain, which is busy 100% of the time; 3,120 rows are not read yet",
        ),
        (
            {"busyTimeMsPerSecond": 998.0},
            "its source is held up by its own chain, which is busy 100% of the time",
        ),
        (
            {"busyTimeMsPerSecond": 100.0, "recordsLag": 3_120.0},
            "no rows from it for 14 s; 3,120 rows of its subtask are not read yet",
        ),
        (
            {"busyTimeMsPerSecond": 100.0, "recordsLag": 0.0},
            "no rows from it for 14 s; an idle timeout (with_idleness) would exclude it",
        ),
    ],
)
def test_an_idle_timeout_is_not_advised_while_rows_are_not_read(metrics, why):
    job = msgspec.structs.replace(JOB, vertices=(vertex("a", metrics),))
    found = explain_watermark(job, [part("a", 0, split("p", 1, standing=14_000, quiet=14_000))], NOW)
    assert found["held-by"]["why"] == why


def test_an_idle_timeout_is_not_advised_for_a_short_silence():
    found = explain_watermark(JOB, [part("a", 0, split("p", 1, quiet=4_000))], NOW)
    assert found["held-by"]["why"] == "no rows from it for 4 s"


def test_a_job_whose_function_does_not_return_is_not_asked():
    call = SlowCallView(what="operator 'm' (0)", since_ms=5_000, at="hang.py:11 in lookup")
    job = msgspec.structs.replace(JOB, summary=msgspec.structs.replace(SUMMARY, slow_calls=(call,)))
    with pytest.raises(PenstockError, match=r"'m' \(0\) has been in one call since .* UTC, at hang.py:11 in lookup"):
        asyncio.run(watermark_holder_of(job, None, NOW))
