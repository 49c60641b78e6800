"""Each bench runs, small, and its answers are right; nothing is said of its times."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(900)
HERE = Path(__file__).parent


def bench(name, *arguments, seconds=600):
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


@pytest.mark.parametrize("memory", [pytest.param(64, marks=pytest.mark.nightly), 0.5])
def test_running_aggregate_is_right_in_memory_and_on_disk(memory):
    arguments = ("--rows", 60_000, "--keys", 20_000, "--batch", 4_000, "--every", 20_000, "--memory", memory)
    result = json.loads(bench("running_aggregate.py", *arguments))
    assert result["right"]
    assert result["barriers"] == 3
    assert (result["held_mb"] == 0) == (memory < 1)


def test_the_bare_loop_is_right():
    from penstock_lab.bench.measuring import reference

    line = bench("peers/bare_loop.py", 1_700_000)
    assert json.loads(line.removeprefix("BENCH "))["checksum"] == reference.windows(1_700_000, 10_000, 10_000)


def test_row_states_on_disk_count_each_order_once():
    command = [sys.executable, "-m", "tests.bench.row_state", "--profile", "1", "--rows", "6000", "--users", "2000"]
    done = subprocess.run([*command, "--memory", "1"], capture_output=True, text=True, check=False, cwd=HERE.parents[1])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["orders"] == 3000


@pytest.mark.nightly
def test_options_of_a_read_choose_bytes_and_no_other_rows():
    command = [sys.executable, "-m", "tests.bench.read_state", "--rows", "1100000"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, cwd=HERE.parents[1])
    assert done.returncode == 0, done.stderr
    _, one_key, _, columns = map(json.loads, done.stdout.splitlines())
    assert (one_key["rows"], columns["rows"]) == (1, 1_100_000)
    assert one_key["read_share"] < 0.2


@pytest.mark.nightly
def test_a_state_that_spark_rewrites_has_the_same_rows():
    command = [sys.executable, "-m", "tests.bench.rewrite_state", "--rows", "60000"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, cwd=HERE.parents[1])
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["way"] for line in done.stdout.splitlines()][1::2] == ["repartition", "rekey"]


@pytest.mark.nightly
def test_a_job_with_state_runs_again_after_each_change():
    ways = ["rescale", "upgrade-from-checkpoint", "stop-with-native-savepoint", "rekey-prepared"]
    command = [sys.executable, "-m", "tests.bench.rewrite_downtime", "--keys", "20000", "--only", *ways]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, cwd=HERE.parents[1])
    assert done.returncode == 0, done.stderr
    assert [line["way"] for line in map(json.loads, done.stdout.splitlines()) if "gap_s" in line] == ways


@pytest.mark.nightly
def test_a_savepoint_of_each_format_by_one_worker_and_by_two():
    command = [sys.executable, "-m", "tests.bench.savepoint", "--keys", "20000", "--slots", "1", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, cwd=HERE.parents[1])
    assert done.returncode == 0, done.stderr
    lines = list(map(json.loads, done.stdout.splitlines()))[1:]
    assert [(line["slots"], line["native"]) for line in lines] == [(1, False), (1, True), (2, False), (2, True)]


@pytest.mark.nightly
@pytest.mark.servers
def test_a_job_that_catches_up_between_kills_counts_each_order_once():
    small = ["--seconds", "14", "--kill-every", "4", "--rate", "500", "--keys", "1000", "--backlog", "5", "--busy", "0"]
    command = [sys.executable, "-m", "tests.bench.kill_soak", *small]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, cwd=HERE.parents[1])
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["wrong_keys"] == 0
    assert result["kills"] > 0


@pytest.mark.nightly
@pytest.mark.servers
def test_a_backfill_of_a_topic_gives_what_plain_spark_gives():
    assert backfill("--source", "kafka", "--cores", 1) == ["spark-1", "here"]


@pytest.mark.nightly
def test_a_backfill_on_executors_gives_what_plain_spark_gives():
    assert backfill("--executors", 1, 2) == ["spark-1", "spark-2"]


def backfill(*arguments):
    """Run the backfill's bench, small; return the results that it compared with those of plain Spark."""
    command = [sys.executable, "-m", "tests.bench.backfill", "windows", "--rows", "400000", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, cwd=HERE.parents[1])
    assert done.returncode == 0, done.stderr
    lines = map(json.loads, done.stdout.splitlines())
    return [line["checked"] for line in lines if line.get("rows") and "checked" in line]
