"""Dashboard and alerts ask for metrics that a running cluster has, at each process that Prometheus is told of."""

import json
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path

import pytest
from tests.flink_tools.cluster import Place
from tests.support.waiting import wait_until

INFRA = Path(__file__).parents[2] / "infra"
ALERTS = INFRA / "prometheus" / "alerts.yml"
DASHBOARD = INFRA / "grafana" / "penstock-jobs.json"
NAME = re.compile(r"\b(?:flink|process)_\w+")
LINE = re.compile(
    r'^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?:[a-zA-Z_]\w*="(?:[^"\\]|\\.)*",?)*\})? (?:[-+0-9.eE]+|NaN|[+-]Inf)$'
)

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(240)]


def expressions():
    """Every expression of both files, with where it stands."""
    found = [(f"alerts.yml: {text}", text) for text in re.findall(r"^ +expr: (.+)$", ALERTS.read_text(), re.MULTILINE)]
    dashboard = json.loads(DASHBOARD.read_text())
    for panel in dashboard["panels"]:
        found += [(f"panel {panel['title']!r}", target["expr"]) for target in panel["targets"]]
    queries = [entry["query"] for entry in dashboard["templating"]["list"]]
    return found + [("variable", query["query"]) for query in queries if isinstance(query, dict)]


def get(url):
    with urllib.request.urlopen(url, timeout=20) as answer:
        assert answer.headers["Content-Type"].startswith(("text/plain; version=0.0.4", "application/json"))
        return answer.read().decode()


def test_every_metric_that_is_asked_for_is_there(tmp_path):
    place = Place(tmp_path)
    with place.cluster:
        place.submit("watched")
        targets = json.loads(get(f"{place.cluster.rest_url}/v1/penstock/prometheus-targets"))
        assert [target["labels"]["component"] for target in targets] == ["jobmanager", "taskmanager"]
        wait_until(lambda: "task_operator_" in get(f"{place.cluster.rest_url}/metrics"), "metrics of tasks")
        texts = [get(f"http://{target['targets'][0]}/metrics") for target in targets]
    lines = [line for text in texts for line in text.splitlines() if not line.startswith("#")]
    assert [line for line in lines if not LINE.match(line)] == []
    there = {LINE.match(line)["name"] for line in lines}
    asked = [(where, name) for where, text in expressions() for name in NAME.findall(text)]
    assert len(asked) > 25
    assert [(where, name) for where, name in asked if name not in there] == []
    workers = [line for line in lines if line.startswith("process_resident_memory_bytes") and "worker_id=" in line]
    assert len(workers) == 1


def test_alerts_are_as_promtool_wants_them():
    """The rules have what Prometheus needs; its own tool says so where it is installed."""
    text = ALERTS.read_text()
    names = re.findall(r"- alert: (\w+)$", text, re.MULTILINE)
    assert len(names) == len(set(names)) == text.count("expr: ") == text.count("way_out: ")
    if promtool := shutil.which("promtool"):
        for command in (["check", "rules", str(ALERTS)], ["check", "config", str(INFRA / "prometheus/prometheus.yml")]):
            done = subprocess.run([promtool, *command], capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stdout + done.stderr
