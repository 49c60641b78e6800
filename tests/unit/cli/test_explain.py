"""`penstock explain` shows every operator of every vertex with its times, and the document itself as JSON."""

import contextlib
import json

import pytest

from penstock.cli.running import explain as module
from penstock.core.clock import ManualClock

ROW = {"cpu-ms": 1234.5, "busy-ms": 2000.0, "cpu-ms-per-second": 12.0, "busy-ms-per-second": 20.0, "share": 0.75}
BUDGET = {
    "jid": "a" * 32,
    "name": "orders",
    "cpu-ms": 1646.0,
    "vertices": [
        {
            "id": "v",
            "name": "read -> map",
            "parallelism": 2,
            "busy-ms": 5000.0,
            "other-busy-ms": 321.0,
            "operators": [
                {"uid": "read", "name": "Source: read", "kind": "source", **ROW},
                {"uid": "(output)", "name": "combine, split, send", "kind": "", **ROW},
            ],
        }
    ],
}


SCALING = {
    "jid": "a" * 32, "name": "orders", "enabled": True, "dry-run": True, "restart-ms": 7_200, "restarts-measured": 2,
    "decisions": [
        {
            "at": 1_700_000_000_000, "until": 1_700_000_060_000, "kind": "rescale", "text": "map 1 -> [3]",
            "outcome": "",
            "vertices": {
                "v": {
                    "name": "map", "parallelism": 1, "wanted": 3, "true-rate": 1000.0, "wanted-rate": 2000.0,
                    "utilization": 2.0,
                }
            },
        }
    ],
}  # fmt: skip


SPLIT = {"subtask": 1, "watermark": 1_700_000_000_000, "standing-ms": 14_000, "idle": False, "finished": False}
WATERMARK = {
    "jid": "a" * 32, "name": "orders",
    "text": "orders-3 of source in (subtask 1): its source has had no answer for 12 s",
    "held-by": {"watermark": 1_700_000_000_000, "since": 1_700_000_000_000}, "vertices": [],
    "sources": [
        {"uid": "in", "unreachable-ms": 12_000, "splits": [{**SPLIT, "id": "orders-3"}]},
        {"uid": "other", "unreachable-ms": 0, "splits": [{**SPLIT, "id": "other-0"}]},
    ],
}  # fmt: skip


SLOW = {
    "kind": "slow", "level": "bad", "title": "map(score) is slow", "text": "It is busy 99 % of the time.",
    "vertex": "v", "since": 1_700_000_000_000,
}  # fmt: skip

CALLS = [{"what": "operator 'map-3' (0)", "since": 1_000, "at": "hang.py:11 in lookup"}]


class Client:
    def jobs(self):
        return [{"jid": "a" * 32, "name": "orders", "state": "RUNNING", "start-time": 1}]

    def budget(self, job_id):
        assert job_id == "a" * 32
        return BUDGET

    def health(self, job_id):
        return {"findings": [SLOW]}

    def summary(self, job_id):
        return {"slow-calls": CALLS}

    def watermark(self, job_id):
        return WATERMARK

    def autoscaler(self, job_id):
        assert job_id == "a" * 32
        return SCALING


@pytest.fixture(autouse=True)
def cluster(monkeypatch):
    monkeypatch.setattr(module, "connect", lambda _: contextlib.nullcontext(Client()))
    monkeypatch.setattr(module, "SystemClock", lambda: ManualClock(24_000))


def test_a_line_an_operator(capsys):
    module.explain("orders")
    lines = capsys.readouterr().out.splitlines()
    assert "1,646 ms" in lines[0]
    assert lines.pop(1) == "operator 'map-3' (0) has been in one call for 23 s, at hang.py:11 in lookup"
    assert lines[1] == "map(score) is slow: It is busy 99 % of the time. (since 2023-11-14 22:13:20 UTC)"
    heading = ["operator", "uid", "CPU", "ms", "share", "CPU", "ms/s", "busy", "ms", "busy", "ms/s"]
    assert lines[2].split() == heading
    assert lines[3].split() == ["read", "->", "map", "x2", "5,000"]
    assert lines[4].split()[-6:] == ["read", "1,234", "75.0%", "12", "2,000", "20"]
    assert lines[5].split()[-6:] == ["(output)", "1,234", "75.0%", "12", "2,000", "20"]
    assert lines[6].split()[-1] == "321"


def test_the_document_as_json(capsys):
    module.explain("orders", json=True)
    assert json.loads(capsys.readouterr().out) == {**BUDGET, "findings": [SLOW], "slow-calls": CALLS}


def test_the_log_of_the_autoscaler(capsys):
    module.explain("orders", module.What.SCALING)
    text = capsys.readouterr().out
    assert "autoscaler dry run, a restart costs 7.2 s (measured, 2)" in text
    assert "map 1 -> [3]" in text
    assert text.splitlines()[-1].split() == ["map", "1", "3", "1,000", "2,000", "200%"]


def test_the_partition_that_holds_the_watermark_back_and_sources_without_an_answer(capsys):
    module.explain("orders", module.What.WATERMARK)
    text = capsys.readouterr().out
    lines = [line.strip() for line in text.splitlines()]
    assert "its source has had no answer for 12 s" in " ".join(text.split())
    (away,) = [line for line in lines if line.startswith("in ")]
    (here,) = [line for line in lines if line.startswith("other ")]
    assert away.endswith("no answer")
    assert "no answer" not in here
