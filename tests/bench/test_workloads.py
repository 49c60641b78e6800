"""Each workload on a real cluster, small: its answer is right; nothing is said of its time."""

import json
import subprocess
import sys

import pytest

#: Of a case that has another one of its bench in the gate.
LATER = pytest.mark.nightly
FIRST = ["workload", "events", "parallelism", "wall_seconds", "cpu_seconds", "events_per_cpu_second"]
FIRST += ["peak_rss_mb", "checksum"]


def bench(*arguments):
    command = [sys.executable, "-m", "penstock.cli.main", "bench", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert list(figures)[: len(FIRST)] == FIRST
    assert int(figures["checksum"].split(":")[0]) > 0, "an empty answer shows nothing"
    return figures


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "arguments",
    [
        ("w1", "--events", "700000"),
        pytest.param(("w1hot", "--events", "1700000", "--nullable"), marks=LATER),
        pytest.param(("w1skew", "--events", "1700000", "--keys", "string"), marks=LATER),
        pytest.param(("w1s", "--events", "800000", "--keys", "string", "--nullable"), marks=LATER),
        ("w2", "--events", "1200000", "--parallelism", "1", "--checkpoint-interval", "300ms", "--key-count", "300000"),
        pytest.param(
            ("w2x", "--events", "700000", "--checkpoint-interval", "500ms", "--key-count", "300000"), marks=LATER
        ),
        ("w3", "--events", "300001", "--parallelism", "1"),
        ("w5", "--events", "1700000", "--checkpoint-interval", "500ms"),
        ("shuffle", "--events", "300001", "--parallelism", "4", "--no-checkpoints"),
    ],
)
def test_a_workload_is_right(arguments):
    figures = bench(*arguments)
    assert figures["workload"] == arguments[0]
    assert figures["events"] == int(arguments[2])
    assert figures["checkpoints"] >= 1
    assert len(figures["bytes_per_checkpoint"]) == len(figures["puts_per_checkpoint"]) == figures["checkpoints"]
    assert min(figures["puts_per_checkpoint"]) >= 1, "the manifest at least"
    assert figures["max_freeze_ms"] >= 0
    everything_is_there(figures)


def everything_is_there(figures):
    """What every workload says beside its delays."""
    assert figures["events_per_second"] > 0
    assert figures["cpu_seconds_per_million_events"] == pytest.approx(
        figures["cpu_seconds"] / figures["events"] * 1e6, rel=0.05, abs=0.01
    )
    assert figures["peak_rss_mb"] > 0
    memory = [figures[f"worker_{what}_mb"] for what in ("private", "fixed", "growth", "buffers")]
    if memory != [None] * 4:  # a job of milliseconds ends before anybody looks
        private, fixed, growth, buffers = memory
        assert fixed > 0
        assert growth >= 0
        assert fixed + growth == private
        assert buffers <= growth
    assert figures["state_memory_mb"] <= figures["managed_memory_mb"]
    assert figures["first_result_seconds"] > 0


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("arguments", "counted"),
    [
        pytest.param(("w1", "--events", "1700000", "--keys", "string", "--nullable"), True, marks=LATER),
        pytest.param(("w2x", "--events", "400000"), True, marks=LATER),
        pytest.param(("w3", "--events", "300001", "--parallelism", "1"), True, marks=LATER),
        pytest.param(("w5", "--events", "1700000"), True, marks=LATER),
        (("shuffle", "--events", "300001"), True),
        pytest.param(("nexmark-q5", "--events", "2000000"), True, marks=LATER),
        # a window of the clock does not end in so short a run
        pytest.param(("nexmark-q12", "--events", "300000"), False, marks=LATER),
    ],
)
def test_delays_at_half_of_the_rate_and_the_answer_is_right_in_both_runs(arguments, counted):
    figures = bench(*arguments, "--latency")
    everything_is_there(figures)
    delays_are_there(figures, counted=counted)
    assert figures["latency"]["events"] == int(arguments[2])


def delays_are_there(figures, *, counted):
    late = figures["latency"]
    assert late["rows_per_second"] == pytest.approx(late["most_rows_per_second"] / 2, abs=1)
    assert (late["results"] > 0) is counted
    if counted:
        assert 0 <= late["p50_ms"] <= late["p99_ms"] <= late["p999_ms"]


@pytest.mark.servers
@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.nightly
def test_delays_of_w4_are_those_of_what_a_checkpoint_has_released():
    figures = bench("w4", "--events", "1700000", "--checkpoint-interval", "300ms", "--latency")
    everything_is_there(figures)
    delays_are_there(figures, counted=True)


@pytest.mark.servers
@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.nightly
def test_w4_is_right_and_stands_beside_the_clients_without_a_job():
    figures = bench("w4", "--events", "510000")
    assert (figures["workload"], figures["events"]) == ("w4", 510_000)
    assert {name: found["events"] for name, found in figures["peers"].items()} == {
        "bare-client": 510_000,
        "reader-json": 510_000,
    }
    assert figures["ratios"].keys() == figures["peers"].keys()
    everything_is_there(figures)


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.nightly
def test_pairs_show_what_checkpoints_take():
    figures = bench("w2", "--events", "300000", "--checkpoint-interval", "300ms", "--pairs", "1")
    (pair,) = figures["pairs"]
    assert pair["with"]["checkpoints"] >= pair["without"]["checkpoints"] == 1
    assert figures["median_loss_percent"].keys() == {"events_per_cpu_second", "events_per_second"}


def others(*arguments):
    """Benchmarks with figures of their own."""
    command = [sys.executable, "-m", "penstock.cli.main", "bench", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_planning_is_measured_at_any_size():
    figures = others("planning", "--events", "40")
    assert 0 < figures["keyed_40_sent_mb"] < 2 * figures["forward_40_sent_mb"]


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.nightly
def test_the_memory_of_workers():
    figures = others("workers", "--parallelism", "2")
    assert figures["workers"] == 2
    assert 0 < figures["uss_mb"] < figures["pss_mb"] < figures["rss_mb"]


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_small_job_has_a_first_result_before_it_ends():
    figures = others("startup", "--events", "1000")
    assert 0 < figures["first_result_seconds"] < figures["end_seconds"]


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_delays_are_counted_behind_a_shuffle_and_beside_a_row_function():
    figures = others("latency-rows", "--events", "20000")
    assert figures["events"] == 20_000
    assert figures["rows_per_second"] == pytest.approx(figures["most_rows_per_second"] / 2, abs=1)
    assert 0 <= figures["p50_ms"] <= figures["p99_ms"]


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_job_that_fails_again_and_again_ends_the_bench_with_its_error():
    command = [sys.executable, "-m", "penstock.cli.main", "bench", "w1", "--events", "3000000"]
    command += ["--set", "managed_memory_bytes=1000000"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 1, done.stderr
    assert "managed_memory allows 1,000,000" in done.stderr
    assert done.stdout == "", "no figure is given"
