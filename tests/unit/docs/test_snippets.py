"""The Python of how-tos, reference, explanations and README is run: jobs are built and validated, but not executed."""

import inspect
import re
import tempfile

import pytest
from documents import PAGES, ROOT, blocks, read

import penstock as ps
from penstock.api.environment import use_executor
from penstock.graph.executor import JobResult

#: Its definitions are those of examples without imports.
INDEX = ROOT / "docs/README.md"
#: Pages whose Python is run; that of snapshot-format.md needs a savepoint and is run in test_snapshot_format.py.
RUN = [
    page
    for page in PAGES
    if page == INDEX or page.parent.name in ("how-to", "reference", "explanation", "coming-from")
    if page.name != "snapshot-format.md" and blocks(page, "python")
]


class Planned:
    """Takes jobs and runs none."""

    def __init__(self):
        self.graphs = []

    def execute(self, graph, **limits):
        self.graphs.append(graph)
        return JobResult(job_id="0" * 32, name=graph.name, state="FINISHED", duration_ms=0.0)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_exist_and_python_compiles(page):
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"\bps\.([A-Za-z_]+)", text):
        assert name in dir(ps) or page.name == "limits.md", f"ps.{name}"
    for number, block in enumerate(blocks(page, "python")):
        compile(block, f"{page.name}#{number}", "exec")


def run(page):
    """Run a page's Python in one namespace, in order; return the namespace and the graphs of the jobs it executes.

    A page that imports penstock in its first block runs alone, every other one after the definitions of docs/README.md.
    """
    namespace, planned = {"__name__": page.stem}, Planned()
    found = blocks(page, "python")
    prelude = blocks(INDEX, "python") if page != INDEX and "import penstock as ps" not in found[0] else []
    with use_executor(planned):
        for number, block in enumerate([*prelude, *found]):
            exec(compile(block, f"{page.name}#{number}", "exec"), namespace)  # noqa: S102 - our own page
    return namespace, planned.graphs


@pytest.mark.parametrize("page", RUN, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_runs_on_its_own(page):
    namespace, graphs = run(page)
    assert len(graphs) == sum(block.count("env.execute(") for block in blocks(page, "python"))
    streams = [value for value in namespace.values() if isinstance(value, ps.DataStream)]
    for stream in streams:
        stream.print()  # a job whose output goes nowhere is refused
    for environment in {id(stream.environment): stream.environment for stream in streams}.values():
        assert environment.job_graph(page.stem).vertices


def test_results_have_the_columns_that_the_pages_say():
    functions, _ = run(ROOT / "docs/how-to/row-functions.md")
    assert functions["both"].columns == ["user_id", "cents"]
    assert functions["cents"].columns == ["user_id", "cents"]
    windows, _ = run(ROOT / "docs/reference/windows.md")
    result = ["user_id", "window_start", "window_end", "count", "total", "mean", "newest"]
    assert windows["per_minute"].columns == result
    joins, _ = run(ROOT / "docs/how-to/join-streams.md")
    for name in ("paid", "per_window"):
        said = re.search(rf"{name} = .*?# columns: (.*?)\n", read("docs/how-to/join-streams.md"), re.DOTALL)
        assert joins[name].columns == said[1].split(", ")


def test_coming_from_compares_one_job():
    pages = sorted((ROOT / "docs/coming-from").glob("*.md"))
    assert len(pages) == 8
    assert len({blocks(page, "python")[0] for page in pages}) == 1


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


def test_the_tests_of_the_how_to_pass(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found, _ = run(ROOT / "docs/how-to/test-a-job.md")
    tests = {name: value for name, value in found.items() if name.startswith("test_")}
    assert len(tests) == 6
    for test in tests.values():
        test(*([tmp_path] if "tmp_path" in inspect.signature(test).parameters else []))
