"""What an event more costs: the difference of two sizes, told only where it is larger than what start-up varies by."""

import json
from types import SimpleNamespace

import pytest

from penstock.core.errors import PenstockError
from penstock_lab.bench.measuring import measure
from penstock_lab.bench.measuring.comparisons import FEW_EVENTS, marginal_figures
from penstock_lab.bench.measuring.measure import BenchJob, JobRun, beside_peers
from penstock_lab.bench.options import BenchOptions
from penstock_lab.workloads.marks import Published, published

MANY = 10 * FEW_EVENTS


def test_start_up_cancels_and_an_outlier_among_the_small_runs_does_not_count():
    assert marginal_figures(1_100, 5.0, 100, (3.0, 9.0, 2.5)) == {
        "few_events": 100,
        "few_cpu_seconds_total": 3.0,
        "marginal_events_per_cpu_second": 500,
    }


@pytest.mark.parametrize("total", [3.5, 3.0, 2.0])
def test_a_difference_within_what_start_up_varies_by_is_no_figure(total):
    assert "marginal_events_per_cpu_second" not in marginal_figures(1_100, total, 100, (3.0,))


@pytest.fixture
def runs(monkeypatch):
    """Small runs of a job that take so many CPU seconds, with an answer that says for how many events it is."""
    totals, asked = [2.0, 2.2, 2.1], []

    def run_child(build, options, folder):
        asked.append(options.events)
        published(str(folder / "marks"), "one", Published(subtask=0, at_ms=1, sums=(options.events, 0, 0, 0)))
        return SimpleNamespace(total=totals[len(asked) - 1]), JobRun()

    monkeypatch.setattr(measure, "run_child", run_child)
    return asked


@pytest.fixture
def peers(tmp_path):
    def write(**more):
        entry = {"name": "p", "rival": "r", "workloads": ["w1"], "command": ["/no/such/program"]} | more
        (tmp_path / "peers.json").write_text(json.dumps({"peers": [entry]}), encoding="utf-8")
        return BenchOptions(events=MANY, peers=str(tmp_path))

    return write


def job(right="{}:0:0:0", events=MANY):
    return BenchJob(workload="w1", build="x:y", right=right.format, events=events)


FOUND = {"cpu_seconds_total": 6.1, "events_per_cpu_second": 1}


def test_the_job_has_a_marginal_cost_where_a_peer_has_one(runs, peers):
    figures = beside_peers(job(), peers(few_events=10), FOUND)
    assert runs == [FEW_EVENTS] * 3
    assert figures["few_cpu_seconds_total"] == 2.1
    assert figures["marginal_events_per_cpu_second"] == (MANY - FEW_EVENTS) / 4


def test_the_job_is_run_once_where_no_peer_has_one_or_it_has_as_few_events_itself(runs, peers):
    assert "few_events" not in beside_peers(job(), peers(), FOUND)
    assert "few_events" not in beside_peers(job(events=FEW_EVENTS), peers(few_events=10), FOUND)
    assert not runs


def test_a_wrong_answer_of_a_small_run_is_an_error(runs, peers):
    with pytest.raises(PenstockError, match=f"the checksum is {FEW_EVENTS}:0:0:0, expected 7:0:0:0"):
        beside_peers(job(right="7:0:0:0"), peers(few_events=10), FOUND)
    assert len(runs) == 1
