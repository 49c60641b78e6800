"""The example jobs build: what a user copies from the docs becomes the main job's graph."""

import runpy
import sys
from pathlib import Path

import pytest

from penstock.api.environment import use_executor

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"


def run(name, executor, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    for variable in ("KAFKA", "ORDERS", "TOTALS", "CHECKPOINTS", "OUTPUT"):
        monkeypatch.delenv(variable, raising=False)
    with use_executor(executor):
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    (graph,) = executor.graphs
    return graph


@pytest.mark.parametrize("name", ["order_totals.py", "order_totals_files.py"])
def test_an_example_is_the_main_job(name, executor, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    graph = run(name, executor(), monkeypatch, "--parallelism", "3")
    assert [o.uid for v in graph.vertices for o in v.operators] == ["orders", "totals", "out"]
    assert [v.parallelism for v in graph.vertices] == [3, 3]
    assert graph.vertices[1].operators[1].config["sink"]["delivery"] == "exactly-once"
    assert graph.settings.checkpoint_root == str(tmp_path / ".penstock/checkpoints")


def test_every_job_among_the_examples_is_run_here():
    assert sorted(p.name for p in EXAMPLES.glob("order_*.py")) == ["order_totals.py", "order_totals_files.py"]
