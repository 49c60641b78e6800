"""Dashboard and alerts ask for metrics that a running cluster has, at each process that Prometheus is told of."""

import json
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path

import pytest
from tests.flink_tools.cluster import Place
from tests.support.monitoring import ALERTS, metrics
from tests.support.waiting import wait_until

RULE_TESTS = Path(__file__).with_name("alerts.test.yml")
LINE = re.compile(
    r'^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?:[a-zA-Z_]\w*="(?:[^"\\]|\\.)*",?)*\})? (?:[-+0-9.eE]+|NaN|[+-]Inf)$'
)

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(240)]


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
    asked = metrics()
    assert len(asked) > 25
    assert [(where, name) for where, name in asked if name not in there] == []
    workers = [line for line in lines if line.startswith("process_resident_memory_bytes") and "worker_id=" in line]
    assert len(workers) == 1


def test_alerts_are_as_promtool_wants_them():
    """The rules have what Prometheus needs, and a case each; its own tool runs the cases where it is installed."""
    text = ALERTS.read_text()
    names = re.findall(r"- alert: (\w+)$", text, re.MULTILINE)
    assert len(names) == len(set(names)) == text.count("expr: ") == text.count("way_out: ")
    cases = re.findall(r"alertname: (\w+)\n +eval_time: \w+\n +exp_alerts:\n", RULE_TESTS.read_text())
    assert sorted(cases) == sorted(names)
    if promtool := shutil.which("promtool"):
        checks = ["check", "rules", ALERTS], ["check", "config", ALERTS.with_name("prometheus.yml")]
        for command in (*checks, ["test", "rules", RULE_TESTS]):
            done = subprocess.run([promtool, *command], capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stdout + done.stderr
