"""Printed rows, found in the logs of workers."""

from penstock.client.executors import PrintedRows
from penstock.config.settings import JobSettings
from penstock.graph.job_graph import JobGraph, JobVertex, OperatorSpec


def graph(*names):
    operators = tuple(OperatorSpec(uid=name, name=name, kind="print", config={"name": name}) for name in names)
    vertex = JobVertex(id="v", name="v", parallelism=1, operators=operators)
    return JobGraph(name="job", vertices=(vertex,), edges=(), settings=JobSettings())


def test_only_whole_lines_of_the_jobs_own_names_each_once(tmp_path):
    logs = tmp_path / "tm-0" / "logs"
    logs.mkdir(parents=True)
    printed = PrintedRows(tmp_path, graph("a", "b"))
    assert list(printed.poll()) == []
    log = logs / "w-1.log"
    log.write_text("2026 WARNING x\na> 1\nc> 2\nb> 3\na> 4")
    assert list(printed.poll()) == ["a> 1", "b> 3"]
    with log.open("a") as file:
        file.write("5\n")
    (logs / "w-2.log").write_text("a> 6\n")
    assert list(printed.poll()) == ["a> 45", "a> 6"]
    assert list(printed.poll()) == []


def test_a_job_that_prints_nothing_is_not_looked_for(tmp_path):
    assert list(PrintedRows(tmp_path / "none", graph()).poll()) == []
