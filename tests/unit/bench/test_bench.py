"""The harness: its list, what it refuses, the gate before any figure, and the right answers themselves."""

import json
import sys

import msgspec
import pytest

from penstock.cli import main
from penstock.core.errors import PenstockError, UsageError
from penstock_lab.bench.measuring.measure import require_right
from penstock_lab.bench.options import BenchOptions
from penstock_lab.bench.registry import WORKLOADS, workload


def run(*arguments, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["penstock", "bench", *arguments])
    # whether kernels have to be compiled, which prints a line, depends on what ran before
    monkeypatch.setattr("penstock_lab.bench.command.compile_kernels", lambda **_: 0)
    with pytest.raises(SystemExit) as ended:
        main.app()
    return ended.value.code


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_can_be_imported(name):
    assert callable(workload(name))


def test_the_list_names_every_workload(monkeypatch, capsys):
    assert run("--list", "--json", monkeypatch=monkeypatch) == 0
    assert list(json.loads(capsys.readouterr().out)) == list(WORKLOADS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "no workload 'nothing'"),
        ([], "the workload is missing"),
        (["w1", "--events", "0"], "--events must be from 1"),
        (["w1", "--parallelism", "0"], "--parallelism must be from 1"),
        (["w1", "--keys", "float"], "--keys 'float'"),
        (["w1", "--checkpoint-interval", "soon"], "not a duration"),
        (["w1", "--checkpoint-interval", "0s"], "--checkpoint-interval must be from 1"),
        (["w1", "--set", "parallelism"], "has no value"),
        (["w3", "--keys", "string"], "no such variant"),
        (["w2", "--nullable"], "no such variant"),
        (["w5", "--nullable"], "no such variant"),
        (["w4", "--nullable", "--bootstrap", "x:1"], "no such variant"),
        (["w1", "--set", "nothing=1"], "unknown setting 'nothing'"),
        (["w1", "--pairs", "101"], "--pairs must be from 0"),
        (["w1", "--pairs", "-1"], "--pairs must be from 0"),
        (["w1", "--pairs", "1", "--no-checkpoints"], "nothing to compare"),
        (["w1", "--pairs", "1", "--peers", "x"], "cannot be combined"),
        (["latency", "--pairs", "1"], "not run in pairs"),
        (["w1", "--latency", "--pairs", "1"], "cannot be combined"),
        (["startup", "--latency"], "no results whose delay could be measured"),
        (["w1", "--key-count", "5"], "its own number of keys"),
        (["w2", "--key-count", "0"], "--key-count must be from 1"),
        (["w2", "--key-count", "5", "--peers", "x"], "the peers have no such variant"),
        (["w1", "--peers", "x", "--keys", "string"], "the peers have no such variant"),
        (["w1", "--peers", "/no/such/folder"], "cannot be read"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(arguments, message, monkeypatch, capsys):
    assert run(*arguments, monkeypatch=monkeypatch) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_wrong_answer_gives_no_figure(monkeypatch, capsys):
    monkeypatch.setattr(
        "penstock_lab.bench.jobs.stateless.w3", lambda options: require_right("w3", str(options.events), "2:3:4:5")
    )
    assert run("w3", "--events", "7", "--json", monkeypatch=monkeypatch) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "the checksum is 7, expected 2:3:4:5" in captured.err


def test_the_gate_lets_the_right_answer_pass():
    require_right("w1", "1:2:3:4", "1:2:3:4")
    with pytest.raises(PenstockError, match="no figure"):
        require_right("w1", "1:2:3:4", "1:2:3:5")
    require_right("w2", "1:2:3:4", "1:2:*:4")
    for wrong in ("1:2:3:5", "1:2:3", "1:2:3:4:5"):
        with pytest.raises(PenstockError, match="no figure"):
            require_right("w2", wrong, "1:2:*:4")


def test_an_option_that_is_left_out_is_the_workloads_own():
    assert BenchOptions().events_or(5) == 5
    assert BenchOptions(events=7).events_or(5) == 7
    with pytest.raises(UsageError):
        BenchOptions(parallelism=5000).check()


@pytest.mark.parametrize(
    ("asked", "interval"),
    [(msgspec.UNSET, 5000), (1000, 1000), (None, None)],
    ids=["not asked", "asked for what most have", "only the last"],
)
def test_a_workloads_own_interval_gives_way_to_the_one_asked_for(asked, interval):
    assert BenchOptions(checkpoint_interval_ms=asked).with_interval(5000).interval_ms == interval
