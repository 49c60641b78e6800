"""Each bench runs, small, and its answers are right; nothing is said of its times."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def bench(name, *arguments, seconds=110):
    command = [sys.executable, str(HERE / name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds, cwd=HERE.parents[1])
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_network_exchange_receives_every_row():
    result = json.loads(bench("network_exchange.py", "--rows", 20_000, "--batch", 5_000, "--check"))
    assert result["rows"] == 40_000


def test_window_aggregate_runs_for_every_kind_of_key():
    lines = bench("window_aggregate.py", "--rows", 20_000, "--batch", 5_000).splitlines()
    assert len(lines) > 1


@pytest.mark.servers
@pytest.mark.processes
def test_w4_is_right_for_two_sizes(tmp_path):
    out = tmp_path / "w4.json"
    bench("w4_kafka.py", "--events", "2000,4000", "--interval", "1s", "--json", out)
    records = json.loads(out.read_text(encoding="utf-8"))["records"]
    assert [(r["name"], r["events"]) for r in records] == [
        (name, events) for events in (2000, 4000) for name in ("bare client", "reader + json", "penstock")
    ]
    assert {r["answer"] for r in records} == {"equal"}
