"""`penstock demo` as a user runs it: workers killed while it runs, every window once and right."""

import pytest
from tests.cluster.stage import cli

FIGURES = ["events", "windows", "missing", "duplicated", "wrong", "restarts", "checkpoints", "seconds"]


def demo(folder, *options):
    said = cli("demo", "--json", *options, cwd=folder, limit=300)
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
@pytest.mark.timeout(600)
def test_the_embedded_demo_is_exact(tmp_path):
    assert demo(tmp_path, "--events", 1_000_000)["events"] == 1_000_000


@pytest.mark.processes
@pytest.mark.servers
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_demo_on_kafka_is_exact(tmp_path):
    assert demo(tmp_path, "--kafka", "--events", 600_000)["events"] == 600_000
