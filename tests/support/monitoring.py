"""Metrics and queries of the alert rules and the dashboard; used by the tests of both."""

import json
import re
from pathlib import Path

INFRA = Path(__file__).parents[2] / "infra"
ALERTS = INFRA / "prometheus" / "alerts.yml"
DASHBOARD = INFRA / "grafana" / "penstock-jobs.json"
METRIC = re.compile(r"\b(?:flink|process)_\w+")


def expressions():
    """Every expression of both files, with where it stands."""
    found = [(f"alerts.yml: {text}", text) for text in re.findall(r"^ +expr: (.+)$", ALERTS.read_text(), re.MULTILINE)]
    dashboard = json.loads(DASHBOARD.read_text())
    for panel in dashboard["panels"]:
        found += [(f"panel {panel['title']!r}", target["expr"]) for target in panel["targets"]]
    queries = [entry["query"] for entry in dashboard["templating"]["list"]]
    return found + [("variable", query["query"]) for query in queries if isinstance(query, dict)]


def metrics():
    """Every metric that is asked for, with where it stands."""
    return [(where, name) for where, text in expressions() for name in METRIC.findall(text)]
