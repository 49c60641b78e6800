"""What is said of a job: the slow operator by name, with the reason, and since when."""

import itertools

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.config.settings import JobSettings
from penstock.jobmanager.messages.views import (
    CheckpointsView,
    CheckpointView,
    EdgeView,
    JobDetail,
    JobSummary,
    OperatorView,
    SubtaskCheckpointView,
    SubtaskView,
    VertexView,
)
from penstock.rest.diagnose.diagnosis import (
    FORGET_MS,
    STALLED_MS,
    Finding,
    FindingHistory,
    JobLoad,
    SubtaskLoad,
    VertexLoad,
    checkpoint_findings,
    diagnose,
    load_of,
    mean_of,
    ordered,
    row_findings,
)
from penstock.rest.flink.documents import progress


def vertex(name, inputs, *subtasks, operators=None):
    """A vertex of subtasks (busy, back-pressured)."""
    loads = tuple(SubtaskLoad(busy, held, 1.0, 1.0, rows_seen=1000 * busy) for busy, held in subtasks)
    operators = operators or {name: subtasks[0][0]}
    return VertexLoad(name, f"chain of {name}", inputs, loads, {uid: f"the {uid}" for uid in operators}, operators)


def job(*vertices, state="RUNNING", error="", measured=True, waits_for="", region_restart=""):
    return JobLoad(state, error, waits_for, vertices, measured, region_restart)


def first(*vertices, **options):
    return diagnose(job(*vertices, **options))[0]


def test_the_vertex_behind_one_that_is_held_back_is_slow():
    found = first(
        vertex("read", (), (0.1, 0.9)), vertex("rate", ("read",), (0.98, 0.0)), vertex("count", ("rate",), (0.2, 0))
    )
    assert (found.kind, found.level, found.vertex, found.operator) == ("slow", "bad", "rate", "rate")
    assert found.title == "the rate is slow"
    assert found.text == "It is busy 98 % of the time. It holds back the read (90 % of its time)."


def test_of_a_chain_the_operator_that_takes_the_time_is_named():
    chain = vertex("rate", ("read",), (0.9, 0.0), operators={"parse": 0.1, "model": 0.72, "(none)": 0.0})
    found = first(vertex("read", (), (0.1, 0.9)), chain)
    assert found.title == "the model is slow"
    assert "Its chain is busy 90 % of the time, 80 % of that in model." in found.text


def test_pressure_that_comes_from_further_down_is_not_held_against_those_between():
    found = diagnose(
        job(
            vertex("read", (), (0.1, 0.9)),
            vertex("map", ("read",), (0.3, 0.7)),
            vertex("write", ("map",), (0.95, 0.0)),
        )
    )
    assert [f.vertex for f in found] == ["write"]


def test_one_subtask_that_does_all_the_work_is_named():
    found = first(vertex("read", (), (0.1, 0.8)), vertex("rate", ("read",), (0.1, 0), (0.99, 0), (0.2, 0)))
    assert (found.kind, found.subtask) == ("skew", 1)
    assert "few keys have most of the rows" in found.text
    assert "the others at most 20 %" in found.text


def test_a_subtask_that_rests_while_all_have_had_as_many_rows_is_no_sign_of_hot_keys():
    loads = tuple(SubtaskLoad(busy, rows_in=1.0, rows_seen=1000.0) for busy in (1.0, 0.3))
    rate = VertexLoad("rate", "rate", ("read",), loads, {"rate": "rate"}, {"rate": 1.0})
    assert first(vertex("read", (), (0.1, 0.8)), rate).kind == "slow"


def test_one_that_waits_for_something_outside_is_not_called_busy():
    found = first(vertex("read", (), (0.1, 0.8)), vertex("write", ("read",), (0.2, 0.1)))
    assert (found.kind, found.title) == ("waiting", "the write is waiting")


def test_a_job_in_one_piece_works_at_its_limit():
    assert first(vertex("read", (), (0.97, 0.0))).kind == "limit"


def test_a_job_that_keeps_up_says_so():
    found = first(vertex("read", (), (0.2, 0.0)), vertex("rate", ("read",), (0.4, 0.1)))
    assert (found.level, found.title) == ("good", "Keeping up")
    assert "the rate, is busy 40 % of the time" in found.text


def test_a_job_without_rows_waits_for_input():
    stalled_sources = VertexLoad("read", "read", (), (SubtaskLoad(),))
    assert first(stalled_sources).kind == "idle"
    assert first(VertexLoad("read", "read", (), (SubtaskLoad(ended=True),))).title == "All input is read"


def test_a_job_that_does_not_run_says_why():
    assert first(state="FAILED", error="no").document()["text"] == "no"
    assert first(state="RESTARTING").level == "bad"
    assert first(vertex("read", (), (0.2, 0.0)), measured=False).kind == "starting"


def test_a_region_that_restarts_is_the_first_finding_of_a_running_job():
    found = first(vertex("read", (), (0.2, 0.0)), measured=False, region_restart="region of read restarts")
    assert (found.kind, found.level) == ("region-restart", "bad")
    assert found.text == "region of read restarts. The other regions continue."


loads = st.tuples(st.floats(0, 1), st.floats(0, 1)).filter(lambda load: sum(load) <= 1)


@given(st.lists(st.lists(loads, min_size=1, max_size=3), min_size=1, max_size=5))
def test_whatever_the_loads_of_a_pipeline_one_culprit_is_right_behind_pressure_or_there_is_none(subtasks):
    names = [f"v{i}" for i in range(len(subtasks))]
    line = [vertex(name, tuple(names[max(0, i - 1) : i]), *subtasks[i]) for i, name in enumerate(names)]
    busy = {names[i]: max(own for own, _ in loads) for i, loads in enumerate(subtasks)}
    held = {names[i]: max(back for _, back in loads) for i, loads in enumerate(subtasks)}
    behind = {
        after
        for before, after in itertools.pairwise(names)
        if held[before] >= 0.25 and (held[after] < 0.25 or held[after] <= busy[after])
    }
    found = diagnose(job(*line))
    named = {f.vertex for f in found if f.kind in ("slow", "skew", "waiting")}
    assert named <= behind
    assert bool(named) == bool(behind)
    assert all(f.kind != "waiting" for f in found) or all(busy[name] < 0.5 for name in behind)
    assert named or found[0].kind in ("limit", "fine")


def test_what_waits_for_a_barrier_is_not_blamed_for_what_works():
    found = diagnose(
        job(
            vertex("read", (), (0.0, 1.0)),
            vertex("rate", ("read",), (0.74, 0.26)),
            vertex("count", ("rate",), (0.03, 0.0)),
        )
    )
    assert [f.vertex for f in found] == ["rate"]


def test_since_when_is_kept_over_short_breaks_and_forgotten_after_long_ones():
    since, slow = FindingHistory(), first(vertex("read", (), (0.1, 0.9)), vertex("rate", ("read",), (0.98, 0.0)))
    assert since.stamped([slow], 1_000)[0].since_ms == 1_000
    assert since.stamped([], 3_000) == []
    assert since.stamped([slow], 9_000)[0].since_ms == 1_000
    assert since.stamped([], 9_000 + FORGET_MS + 1) == []
    assert since.stamped([slow], 9_000 + FORGET_MS + 2)[0].since_ms == 9_000 + FORGET_MS + 2


def test_a_good_state_ends_with_an_interruption_and_with_a_restart():
    since, fine = FindingHistory(), first(vertex("read", (), (0.1, 0.0)))
    assert since.stamped([fine], 1_000)[0].since_ms == 1_000
    assert since.stamped([fine], 3_000)[0].since_ms == 1_000
    assert since.stamped([], 5_000) == []
    assert since.stamped([fine], 7_000)[0].since_ms == 7_000
    assert since.stamped([fine], 9_000, running_ms=8_500)[0].since_ms == 9_000
    assert since.stamped([fine], 11_000, running_ms=8_500)[0].since_ms == 9_000


def test_event_time_that_stands_still_while_rows_come_is_told_with_its_subtask():
    def look(*marks, rows=1.0):
        return job(VertexLoad("read", "read", (), tuple(SubtaskLoad(rows_out=rows, watermark_ms=m) for m in marks)))

    since = FindingHistory()
    assert since.stalled_sources(look(100, 900), 0) == []
    assert since.stalled_sources(look(100, 1900), STALLED_MS - 1) == []
    found = since.stalled_sources(look(100, 2900), STALLED_MS)
    assert [(f.subtask, f.since_ms) for f in found] == [(0, 0)]
    assert since.stalled_sources(look(200, 2900), STALLED_MS + 1) == []
    assert since.stalled_sources(look(200, 2900, rows=0.0), 3 * STALLED_MS) == []
    assert since.stalled_sources(look(200, 2900), 3 * STALLED_MS + 1) == [], "it began to stand when rows came again"


# --- from the JobManager's views --------------------------------------------------------------------------------------

SUMMARY = JobSummary(
    job_id="1" * 32, name="job", state="RUNNING", run_id="r", start_ms=5, end_ms=-1, last_modified_ms=6, tasks={},
    restarts=0,
)  # fmt: skip


def detail(metrics, inputs=("a",)):
    def made(vertex_id, values):
        subtasks = tuple(SubtaskView(subtask=i, state="RUNNING", attempt=0, metrics=m) for i, m in enumerate(values))
        operators = (OperatorView(uid="u", name="", kind="k"),)
        return VertexView(
            id=vertex_id, name=vertex_id, parallelism=len(values), max_parallelism=8, state="RUNNING",
            operators=operators, subtasks=subtasks,
        )  # fmt: skip

    edges = tuple(EdgeView(source=source, target="b", partitioner="forward") for source in inputs)
    vertices = tuple(made(name, values) for name, values in metrics.items())
    return JobDetail(summary=SUMMARY, vertices=vertices, edges=edges, settings=JobSettings(), timestamps={})


def test_loads_are_read_from_metrics_and_averaged():
    def look(busy):
        mine = {"busyTimeMsPerSecond": busy, "operator/u/busyTimeMsPerSecond": busy / 2, "currentOutputWatermark": 7.0}
        return load_of(detail({"a": [mine], "b": [mine, {**mine, "currentOutputWatermark": -9e15}]}))

    found = mean_of([look(100.0), look(300.0)])
    assert found.vertices[1].inputs == ("a",)
    assert found.vertices[1].busy == 0.2
    assert found.vertices[1].operator_busy == {"u": 0.1}
    assert (found.vertices[0].watermark_ms, found.vertices[1].watermark_ms) == (7, None)
    changed = load_of(detail({"a": [{"busyTimeMsPerSecond": 900.0}]}))
    assert mean_of([look(100.0), changed]).vertices[0].busy == 0.9, "of another shape: not averaged"
    assert not load_of(detail({"a": [{}]})).measured


def checkpoint(number, status, **values):
    return CheckpointView(id=number, kind="checkpoint", status=status, trigger_ms=number * 1000, **values)


def test_checkpoints_that_fail_and_those_that_take_long_are_told():
    history = [
        checkpoint(9, "IN_PROGRESS", acknowledged=1, total=3, subtasks=(
            SubtaskCheckpointView(
                vertex_id="a", subtask=0, ack_ms=1, state_bytes=0, new_bytes=0, alignment_ms=0, sync_ms=0, async_ms=0
            ),
        )),
        checkpoint(8, "FAILED", end_ms=8500, failure="the store is full."),
        checkpoint(7, "FAILED", end_ms=7500, failure="no"),
        checkpoint(6, "COMPLETED"),
        checkpoint(5, "FAILED", end_ms=5500),
    ]  # fmt: skip
    view = CheckpointsView(completed=1, failed=3, in_progress=1, restored=0, history=tuple(history))
    found = checkpoint_findings(view, detail({"a": [{}], "b": [{}, {}]}), 60_000)
    assert [(f.title, f.since_ms) for f in found] == [
        ("The last 2 checkpoints failed", 7500), ("Checkpoint 9 is slow", 9000),
    ]  # fmt: skip
    assert found[0].text.startswith("the store is full. Until")
    assert "1 of 3 subtasks are done; waiting for subtask 0 of b, subtask 1 of b." in found[1].text
    calm = CheckpointsView(completed=1, failed=0, in_progress=1, restored=0, history=(checkpoint(6, "COMPLETED"),))
    assert checkpoint_findings(calm, detail({"a": [{}]}), 60_000) == []


def test_identities_differ_by_what_a_reader_would_call_another_thing():
    slow, skewed, other, waiting = (
        first(vertex("a", (), (0, 0.9)), vertex("b", ("a",), *loads))
        for loads in ([(0.9, 0)], [(0.9, 0), (0.1, 0)], [(0.1, 0), (0.9, 0)], [(0.1, 0)])
    )
    assert (slow.kind, skewed.kind, other.kind, waiting.kind) == ("slow", "skew", "skew", "waiting")
    assert slow.identity == skewed.identity == other.identity
    assert waiting.identity != slow.identity
    assert first(vertex("b", (), (0.95, 0))).identity != slow.identity


def test_what_was_left_out_is_told_by_source_and_operator():
    nothing = {"bad-records": {}, "doubtful-times": {}, "late-records": {}, "slow-calls": []}
    assert row_findings(nothing, 0) == []
    found = row_findings(
        {
            "bad-records": {"orders": 1234},
            "bad-record-examples": {"orders": "topic t partition 0 offset 7: not JSON; value: b'x'"},
            "doubtful-times": {"orders": {"rows": 5, "example": 1_700_000}},
            "distant-times": {"orders": {"rows": 6, "example": 5_000_000_000_000}},
            "late-records": {"count risks": 7},
            "slow-calls": [],
        },
        0,
    )
    assert found[0].text.startswith(
        "The first one: topic t partition 0 offset 7: not JSON; value: b'x'. on_bad_record='dead-letter' sends"
    )
    assert [(f.level, f.title) for f in found] == [
        ("warn", "1,234 bad records in source orders"),
        ("warn", "5 rows of orders have event times before 1990"),
        ("warn", "6 rows of orders have event times after 2100"),
        ("neutral", "7 late rows were dropped at count risks"),
    ]


def test_a_summary_has_the_rows_of_a_source_with_odd_times():
    old, far = {"oldTimestamps": 2.0, "oldTimestampMs": 5.0}, {"distantTimestamps": 3.0, "distantTimestampMs": 5e12}
    none = CheckpointsView(completed=0, failed=0, in_progress=0, restored=0, history=())
    found = progress(detail({"a": [old, far, {"badRecords": 4.0, "badTimestamps": 1.0}], "b": [{}]}), none)
    assert found["doubtful-times"] == {"u": {"rows": 2, "example": 5}}
    assert found["distant-times"] == {"u": {"rows": 3, "example": 5_000_000_000_000}}
    assert found["bad-records"] == {"u": 5}
    looked = detail({"a": [old, far], "b": [{}]})
    hidden = progress(replace(looked, settings=JobSettings(show_values_in_errors=False)), none)
    assert hidden["doubtful-times"] == {"u": {"rows": 2, "example": None}}
    assert hidden["distant-times"] == {"u": {"rows": 3, "example": None}}


def test_a_call_that_takes_long_is_told_with_what_it_waits_for():
    nothing = {"bad-records": {}, "doubtful-times": {}, "late-records": {}}
    calls = [{"what": "sink 'out' (1): publishing checkpoint 7 to topic t at b:9092", "since": 5, "at": ""}]
    (found,) = row_findings({**nothing, "slow-calls": calls}, 9_000)
    assert (found.level, found.since_ms) == ("warn", 5)
    assert found.title == "Slow call: sink 'out' (1): publishing checkpoint 7 to topic t at b:9092"


def test_a_slow_call_is_told_first_and_no_operator_is_at_its_limit_meanwhile():
    calls = [{"what": "source 'in' (0): delivering dead letters to topic 'd' at b:9092", "since": 5, "at": ""}]
    (found,) = row_findings({"bad-records": {}, "late-records": {}, "slow-calls": calls}, 9_000)
    full, fine = Finding("limit", "warn", "in is at its limit"), Finding("fine", "good", "Keeping up")
    late = Finding("late-rows", "neutral", "late")
    assert ordered([full, fine, late, found]) == [found, late]
    assert ordered([full, late]) == [full, late]


def test_a_function_that_does_not_return_is_told_first_with_its_place_and_the_job_does_not_keep_up():
    nothing = {"bad-records": {}, "late-records": {}}
    calls = [{"what": "operator 'map-3' (0)", "since": 5_000, "at": "hang.py:11 in lookup"}]
    (found,) = row_findings({**nothing, "slow-calls": calls}, 28_000)
    assert (found.kind, found.level, found.since_ms) == ("function-in-call", "warn", 5_000)
    assert found.title == "Operator 'map-3' (0) has been in one call for 23 s, at hang.py:11 in lookup"
    fine, full = Finding("fine", "good", "Keeping up"), Finding("limit", "warn", "map-3 is at its limit")
    slow = Finding("slow", "warn", "map-3 is slow")
    assert ordered([fine, full, slow, found]) == [found, slow]


def test_a_source_without_an_answer_is_named_with_its_place_and_the_job_does_not_keep_up():
    nothing = {"bad-records": {}, "late-records": {}}
    away = {"since": 7, "for-ms": 4_300, "place": "topic t at b:9"}
    (found,) = row_findings({**nothing, "sources-unreachable": {"in": away}}, 0)
    assert (found.title, found.since_ms) == ("Source in: no answer for 4 s", 7)
    assert found.text.startswith("It waits for topic t at b:9 and resumes with the next answer.")
    fine, late = Finding("fine", "good", "Keeping up"), Finding("late-rows", "neutral", "late")
    assert ordered([fine, late, found]) == [late, found]
    assert ordered([fine, late]) == [late, fine]
