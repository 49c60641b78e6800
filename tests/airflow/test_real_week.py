"""A week of scheduled savepoints in a real Airflow: its scheduler makes the runs, a real job runs all the time."""

from datetime import datetime, timedelta

import pytest
from tests.airflow.orders_job import fed
from tests.airflow.week import ALARM_HOURS, DAG, JOB, STEP, TIMES, folders, naive, target_in
from tests.cluster.stage import cli
from tests.support.waiting import wait_until

from penstock.checkpoint.retention import files_of
from penstock.snapshots.access.opening import open_snapshot
from penstock.snapshots.access.verify import verify

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]
WEEK_LIMIT_S = 1_400
#: Orders a second, so that there are some all the week.
RATE = 60


def ended_runs(airflow):
    """The week's runs by date, once all have ended."""
    runs = airflow.api("GET", f"/api/v2/dags/{DAG}/dagRuns?limit=100&order_by=logical_date")["dag_runs"]
    assert "failed" not in {run["state"] for run in runs}, airflow.diagnosis()
    return runs if sum(run["state"] == "success" for run in runs) == len(TIMES) else None


def check_the_making(runs):
    """The scheduler has made one run for each date, one after the other."""
    assert [datetime.fromisoformat(run["logical_date"]) for run in runs] == TIMES
    assert {run["run_type"] for run in runs} == {"scheduled"}
    began, ended = ([datetime.fromisoformat(run[at]) for run in runs] for at in ("start_date", "end_date"))
    assert all(before <= after for before, after in zip(ended, began[1:], strict=False))


def name_of(uri):
    return uri.rpartition("/")[2]


class Week:
    """What the runs have done, beside what they should have."""

    def __init__(self, airflow, target):
        self.airflow, self.target = airflow, target
        #: (time, whether a savepoint was taken) of each run; time -> the savepoint's folder
        self.runs, self.taken = [], {}

    def follow(self, time, run):
        """Look at what a run has taken, removed and kept: exactly what the model does."""
        before = naive(self.runs)
        saved = self.airflow.task(DAG, run, "savepoint")["state"] == "success"
        self.runs.append((time, saved))
        if saved:
            self.taken[time] = name_of(self.airflow.result(DAG, run, "savepoint")["location"])
        after = naive(self.runs)
        cleaned = self.airflow.result(DAG, run, "clean")
        assert [name_of(uri) for uri in cleaned["kept"]] == [self.taken[t] for t in reversed(after)]
        assert {name_of(uri) for uri in cleaned["removed"]} == {self.taken[t] for t in set(before) - set(after)}
        assert cleaned["in_use"] == []

    def check_storage(self):
        """What the model keeps is whole; no other object lies below the target."""
        found = folders(self.target)
        assert sorted(found) == sorted(self.taken[time] for time in naive(self.runs))
        for folder, names in found.items():
            uri = f"{self.target}/{folder}"
            assert names == {"manifest.json", *files_of(open_snapshot(uri).manifest)}
            assert not verify(uri).damaged


@pytest.mark.nightly
def test_a_week_of_scheduled_savepoints(stage, tmp_path):
    """Each of 28 runs leaves what a naive model keeps; then the job dies, is told after half a day, and restored."""
    airflow = stage.airflow
    week = Week(airflow, target_in(stage.servers.bucket))
    with fed(stage.servers, tmp_path, JOB) as orders:
        orders.feed.rate = RATE
        # no checkpoint publishes anything behind the newest savepoint, so a start from there has to be exact
        job = cli(
            "run",
            orders.write(interval="1h"),
            "--cluster",
            stage.cluster.rest_url,
            "--detached",
            "--json",
            cwd=tmp_path,
        )
        job_id = job.value["jobid"]
        wait_until(lambda: stage.rest.job(job_id)["status-counts"]["RUNNING"], "a running job", step=0.1)
        airflow.unpause(DAG)
        runs = wait_until(lambda: ended_runs(airflow), airflow.diagnosis, seconds=WEEK_LIMIT_S, step=1)
        check_the_making(runs)
        for time, run in zip(TIMES, runs, strict=True):
            week.follow(time, run["dag_run_id"])
        assert len(week.taken) == len(TIMES)
        week.check_storage()

        stage.end_all()
        for state in ("success", "failed"):
            time = week.runs[-1][0] + STEP
            run = airflow.trigger(DAG)
            airflow.wait_run(DAG, run, state, again=True)  # a savepoint of a dead job fails at every attempt
            week.follow(time, run)
        told = airflow.log(DAG, run, "alarm")
        assert f"older than {ALARM_HOURS} h ({JOB}: 12.0 h)" in told
        assert time - TIMES[-1] == timedelta(hours=ALARM_HOURS)
        assert len(week.taken) == len(TIMES)
        week.check_storage()

        newest = f"{week.target}/{week.taken[TIMES[-1]]}"
        stage.exact(orders, stage.submitted(orders.write("again"), from_uri=newest)[1])
