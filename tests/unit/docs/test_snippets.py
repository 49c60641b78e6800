"""The Python of the guide and of the README is run: jobs are built and validated, only their execution is left out."""

import re

import pytest
from documents import PAGES, ROOT, blocks

import penstock as ps
from penstock.api.environment import use_executor
from penstock.graph.executor import JobResult


class Planned:
    """Takes jobs and runs none."""

    def __init__(self):
        self.graphs = []

    def execute(self, graph):
        self.graphs.append(graph)
        return JobResult(job_id="0" * 32, name=graph.name, state="FINISHED", duration_ms=0.0)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_exist_and_python_compiles(page):
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"\bps\.([A-Za-z_]+)", text):
        assert name in dir(ps) or page.name == "limits.md", f"ps.{name}"
    for number, block in enumerate(blocks(page, "python")):
        compile(block, f"{page.name}#{number}", "exec")


def test_the_guide_builds_its_jobs():
    namespace = {"__name__": "guide"}
    planned = Planned()
    with use_executor(planned):
        for block in blocks("docs/guide.md", "python"):
            exec(block, namespace)  # noqa: S102 - our own page
    assert [graph.name for graph in planned.graphs] == ["file-totals", "order-totals"]
    assert namespace["both"].columns == ["user_id", "cents"]
    assert namespace["cents"].columns == ["user_id", "cents"]
    result = ["user_id", "window_start", "window_end", "count", "total", "mean", "newest"]
    assert namespace["per_minute"].columns == result


def test_the_readme_builds_its_job():
    planned = Planned()
    with use_executor(planned):
        for block in blocks("README.md", "python"):
            exec(block, {"__name__": "readme"})  # noqa: S102 - our own page
    (graph,) = planned.graphs
    assert [operator.uid for vertex in graph.vertices for operator in vertex.operators] == ["orders", "totals", "out"]


def test_the_main_job_has_nine_lines():
    (block,) = blocks("README.md", "python")
    body = block.partition("env = ")[2]
    assert len(body.strip().splitlines()) <= 9
