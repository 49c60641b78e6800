"""The event log says when the system of a source stops and begins to answer."""

from penstock.config.settings import JobSettings
from penstock.graph.job_graph import JobGraph, JobVertex, OperatorSpec
from penstock.jobmanager.master.worker_reports import UnreachableSources


def vertex(kind):
    operator = OperatorSpec(uid=kind, name=kind, kind=kind, config={"source": {"place": "topic t at b:9"}})
    return JobVertex(id=kind, name=kind, operators=(operator,), parallelism=2)


GRAPH = JobGraph(name="job", vertices=(vertex("source"), vertex("map")), edges=(), settings=JobSettings())


def silent(*times_ms, of="source"):
    """Metrics of subtasks at second 20 whose system has been silent for these times."""
    return {
        f"{of}/{index}": {
            "sourceUnreachableMs": float(time_ms),
            "sourceUnreachableSince": 20_000.0 - time_ms if time_ms else 0.0,
        }
        for index, time_ms in enumerate(times_ms)
    }


def test_each_outage_is_told_when_it_begins_and_when_every_subtask_has_an_answer():
    sources = UnreachableSources(GRAPH)
    assert sources.reported(silent(0, 1_999)) == []
    (line,) = sources.reported(silent(2_500, 3_000))
    assert line == "source source: no answer from topic t at b:9 since 1970-01-01 00:00:17 UTC"
    assert sources.reported(silent(9_000, 0)) == []
    assert sources.reported(silent(1_000, 0)) == []
    assert sources.reported(silent(0, 0)) == ["source source: topic t at b:9 answers again, after about 9 s"]
    assert sources.reported(silent(0, 0)) == []


def test_a_halted_job_forgets_the_outage_and_other_vertices_have_none():
    sources = UnreachableSources(GRAPH)
    assert sources.reported(silent(5_000, of="map")) == []
    assert sources.reported(silent(5_000)) != []
    sources.halted()
    assert sources.reported({}) == []
    assert sources.reported(silent(0, 0)) == []
