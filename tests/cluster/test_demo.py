"""`penstock demo` as a user runs it: workers killed while it runs, every window once and right."""

import pytest
from tests.cluster.stage import cli

FIGURES = ["events", "windows", "missing", "duplicated", "wrong", "restarts", "checkpoints", "seconds"]


def demo(folder, *options, limit):
    said = cli("demo", "--json", *options, cwd=folder, limit=limit)
    assert said.code == 0, said
    figures = said.value
    assert list(figures) == FIGURES
    assert (figures["missing"], figures["duplicated"], figures["wrong"]) == (0, 0, 0)
    assert figures["windows"] > 0
    assert figures["restarts"] >= 2
    assert figures["checkpoints"] >= 2
    return figures


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(100)
def test_the_embedded_demo_is_exact(tmp_path):
    assert demo(tmp_path, "--events", 1_000_000, limit=90)["events"] == 1_000_000


@pytest.mark.processes
@pytest.mark.servers
@pytest.mark.slow
@pytest.mark.timeout(170)
def test_the_demo_on_kafka_is_exact(tmp_path):
    assert demo(tmp_path, "--kafka", "--events", 1_000_000, limit=140)["events"] == 1_000_000
