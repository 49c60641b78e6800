"""Failpoints: off by default, act once per evidence folder, leave evidence before they act."""

import json
from pathlib import Path

import pytest

from penstock.core import failpoints


@pytest.fixture(autouse=True)
def _forget_after() -> None:
    failpoints.reset()


def _arm(monkeypatch: pytest.MonkeyPatch, folder: Path, spec: str) -> None:
    monkeypatch.setenv("PENSTOCK_FAILPOINTS", spec)
    monkeypatch.setenv("PENSTOCK_FAILPOINT_DIR", str(folder))
    failpoints.reset()


def test_unarmed_points_do_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _arm(monkeypatch, tmp_path, "")
    failpoints.hit("task.before_ack")
    assert list(tmp_path.iterdir()) == []


def test_a_point_acts_at_its_nth_hit_and_only_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _arm(monkeypatch, tmp_path, "task.before_ack=error@2")
    failpoints.hit("task.before_ack", checkpoint=1)
    with pytest.raises(failpoints.FailpointError):
        failpoints.hit("task.before_ack", checkpoint=2)
    failpoints.hit("task.before_ack", checkpoint=3)
    evidence = [json.loads(line) for line in (tmp_path / "task.before_ack.hit").read_text().splitlines()]
    assert [e["checkpoint"] for e in evidence] == ["2"]


def test_an_unknown_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _arm(monkeypatch, tmp_path, "task.befor_ack=kill")
    with pytest.raises(ValueError, match="unknown failpoint"):
        failpoints.hit("task.before_ack")


def test_hold_waits_for_its_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _arm(monkeypatch, tmp_path, "jobmanager.before_manifest=hold")
    (tmp_path / "jobmanager.before_manifest.release").touch()
    failpoints.hit("jobmanager.before_manifest")
    assert (tmp_path / "jobmanager.before_manifest.hit").exists()
