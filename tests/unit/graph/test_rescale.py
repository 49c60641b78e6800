"""Another parallelism for a graph as it is: what changes together, what stays one, what is refused."""

import msgspec
import pytest

from penstock.config.settings import AdaptiveSchedulerSettings
from penstock.core.errors import UsageError
from penstock.graph.job_graph import required_slots
from penstock.graph.rescale import (
    RescaleTo,
    declared_slots,
    fitted,
    keeping_parallelism,
    least_slots,
    limited,
    reachable_parallelism,
    rescaled,
    within_bounds,
)


def widths(graph):
    return {vertex.name: vertex.parallelism for vertex in graph.vertices}


@pytest.fixture
def job(graphs):
    """Source and window of the job's parallelism, a sink of its own."""
    graphs.sink(graphs.window(graphs.source()), parallelism=1)
    return graphs.job_graph()


def test_the_jobs_own_parallelism_changes_and_what_was_given_one_keeps_it(job):
    after = rescaled(job, 5, {})
    assert widths(after) == {"in": 5, "window": 5, "out": 1}
    assert after.settings.parallelism == 5
    assert after.fingerprint == job.fingerprint
    assert widths(rescaled(after, 2, {})) == widths(job)


def test_one_operator_is_named_by_uid_or_vertex(job):
    assert widths(rescaled(job, None, {"window": 4})) == {"in": 2, "window": 4, "out": 1}
    assert widths(rescaled(job, 3, {job.vertices[2].id: 2})) == {"in": 3, "window": 3, "out": 2}


def test_what_is_joined_by_forward_edges_changes_together(graphs):
    source = graphs.source()
    graphs.sink(source, name="a")
    graphs.sink(source, name="b")
    job = graphs.job_graph()
    assert widths(rescaled(job, None, {"a": 3})) == {"in": 3, "a": 3, "b": 3}
    with pytest.raises(UsageError, match=r"connected subtask by subtask.*3.*4"):
        rescaled(job, None, {"a": 3, "b": 4})


def test_an_operator_that_chooses_among_all_rows_stays_one(graphs):
    graphs.set(parallelism=1)
    top = graphs.operator("top", "window_top", graphs.window(graphs.source()), stateful=True, config={"local": False})
    graphs.sink(top)
    job = graphs.job_graph()
    assert widths(rescaled(job, 3, {}))["in"] == 3
    assert all(v.parallelism == 1 for v in rescaled(job, 3, {}).vertices if "top" in v.name)
    with pytest.raises(UsageError, match="one subtask chooses"):
        rescaled(job, None, {"top": 2})


@pytest.mark.parametrize(
    ("parallelism", "by_uid", "text"),
    [
        (None, {}, "no parallelism"),
        (0, {}, "0 is not a number of subtasks"),
        (1025, {}, "more than the 1024 key groups"),
        (None, {"nobody": 2}, "no operator 'nobody'"),
    ],
)
def test_what_cannot_be_is_refused(job, parallelism, by_uid, text):
    with pytest.raises(UsageError, match=text):
        rescaled(job, parallelism, by_uid)


def test_bounds_take_as_many_subtasks_as_there_are_slots(job):
    source, window, _sink = (v.id for v in job.vertices)
    bounds = {source: (1, 6), window: (2, 4)}
    assert within_bounds(job, bounds, 9) == {source: 6, window: 4}
    assert within_bounds(job, bounds, 5) == {source: 5, window: 4}
    assert within_bounds(job, bounds, 2) == {source: 2, window: 2}
    assert required_slots(RescaleTo(bounds=bounds).applied(job, 3)) == 3
    with pytest.raises(UsageError, match="needs 2 slots"):
        within_bounds(job, bounds, 1)
    with pytest.raises(UsageError, match="not a range"):
        within_bounds(job, {source: (3, 2)}, 9)
    with pytest.raises(UsageError, match="no vertex"):
        within_bounds(job, {"x": (1, 2)}, 9)


@pytest.fixture
def adaptive(job):
    settings = AdaptiveSchedulerSettings(enabled=True, min_parallelism=2)
    wide = rescaled(job, 6, {"out": 4})
    return msgspec.structs.replace(wide, settings=msgspec.structs.replace(wide.settings, adaptive_scheduler=settings))


@pytest.mark.parametrize(("slots", "expected"), [(1, 0), (2, 2), (5, 5), (6, 6), (9, 6)])
def test_an_adaptive_job_reaches_what_the_slots_suffice_for(adaptive, slots, expected):
    assert reachable_parallelism(adaptive, slots) == expected
    assert required_slots(fitted(adaptive, slots)) == (expected or 6)


def test_a_limited_job_keeps_what_it_declares(adaptive):
    limit = limited(adaptive, 3)
    assert widths(limit) == {"in": 3, "window": 3, "out": 3}
    assert (reachable_parallelism(limit, 9), limited(limit, 9)) == (6, adaptive)
    assert widths(rescaled(limit, 5, {})) == {"in": 5, "window": 5, "out": 4}, (
        "the parts with the job's own parallelism"
    )
    assert widths(RescaleTo(parallelism=8).applied(limit, 3)) == {"in": 3, "window": 3, "out": 3}
    assert widths(limited(RescaleTo(parallelism=8).applied(limit, 3), 9)) == {"in": 8, "window": 8, "out": 4}
    assert (least_slots(limit), declared_slots(limit)) == (2, 6)


def test_a_job_without_the_adaptive_scheduler_is_not_fitted(job):
    assert (fitted(job, 1), least_slots(job)) == (job, required_slots(job))


def test_a_new_version_keeps_the_parallelism_that_runs(job):
    running = rescaled(job, 5, {"out": 3})
    kept = keeping_parallelism(running, job, keep=True)
    assert widths(kept.graph) == {"in": 5, "window": 5, "out": 3}
    assert kept.graph.settings.parallelism == 5
    assert kept.changes == {"in": (5, 2, 5), "window": (5, 2, 5), "out": (3, 1, 3)}
    assert keeping_parallelism(job, job, keep=True).changes == {}


def test_a_new_version_that_is_told_its_parallelism_has_it(job):
    kept = keeping_parallelism(rescaled(job, 5, {}), job, keep=False)
    assert kept.graph == job
    assert kept.changes == {"in": (5, 2, 2), "window": (5, 2, 2)}


def test_an_operator_that_the_running_version_lacks_has_the_jobs_own_parallelism_or_its_files(graphs, job):
    window = graphs.window(graphs.source("second"), name="other")
    graphs.sink(window, name="more", parallelism=1)
    wider = graphs.job_graph()
    found = widths(keeping_parallelism(rescaled(job, 5, {}), wider, keep=True).graph)
    assert found == {"in": 5, "window": 5, "out": 1, "second": 5, "other": 5, "more": 1}


def test_a_new_version_has_no_more_subtasks_than_key_groups(job):
    few = msgspec.structs.replace(job, settings=msgspec.structs.replace(job.settings, key_groups=4))
    kept = keeping_parallelism(rescaled(job, 5, {}), few, keep=True)
    assert widths(kept.graph) == {"in": 4, "window": 4, "out": 1}
    assert kept.changes["window"] == (5, 2, 4)
