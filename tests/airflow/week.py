"""A simulated week of `savepoint_schedule`: its DAG as a user copies it, what a naive model keeps, and what is there.

The scheduler makes the week's runs one after the other, for the dates of a week that has passed (catchup). Savepoints
know by the clock when they were taken, so each run begins with a task that makes all that lie there six hours older.
"""

from datetime import UTC, datetime, timedelta

from tests.airflow.conftest import ROOT

from penstock.checkpoint.stores import open_store

DAG = "savepoint_week"
JOB = "week"
STEP = timedelta(hours=6)
START = datetime(2026, 1, 5, tzinfo=UTC)
#: The logical dates of the runs.
TIMES = [START + number * STEP for number in range(28)]
#: Of the DAG as it is; a savepoint is a moment older when its run looks for what may go.
KEEP, KEEP_HOURS, ALARM_HOURS = 7, 48, 12
MOMENT = timedelta(seconds=1)
#: What a user changes in the copy, and the pauses between looks and tries.
CHANGES = {
    'dag_id="savepoint_schedule"': f'dag_id="{DAG}"',
    'os.environ.get("PENSTOCK_SAVEPOINT_JOB", "")': repr(JOB),
    "start_date=datetime(2026, 1, 1, tzinfo=UTC)": f"start_date=datetime({START:%Y, %-m, %-d}, tzinfo=UTC)",
    "catchup=False": f"catchup=True, end_date=datetime({TIMES[-1]:%Y, %-m, %-d, %-H}, tzinfo=UTC)",
    "max_active_runs=1": "max_active_runs=1, is_paused_upon_creation=True",
    '"retry_delay": timedelta(minutes=1)': '"retry_delay": timedelta(seconds=1), "poll_seconds": 0.2',
}
TIME_PASSES = """
    from airflow.sdk import task
    from msgspec.structs import replace

    from penstock.checkpoint.manifest_log import decode_manifest, encode_manifest
    from penstock.checkpoint.stores import open_store

    @task(retries=0)
    def six_hours_pass(params=None):
        store = open_store(params["target"])
        for key in store.list(""):
            if key.endswith("/manifest.json"):
                manifest = decode_manifest(store.read(key))
                store.put(key, encode_manifest(replace(manifest, created_ms=manifest.created_ms - 6 * 3_600_000)))

    six_hours_pass() >> savepoint
"""


def target_in(bucket):
    return f"s3://{bucket}/{JOB}/savepoints"


def dag_text(bucket):
    """The DAG of the repository for one job and one week; it is paused until the job runs."""
    text = (ROOT / "dags" / "savepoint_schedule.py").read_text()
    changes = {**CHANGES, 'os.environ.get("PENSTOCK_SAVEPOINT_TARGET", "")': repr(target_in(bucket))}
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text + TIME_PASSES


def naive(runs):
    """(time, whether a savepoint was taken) of all runs so far -> the times whose savepoints are still there."""
    there = []
    for now, saved in runs:
        if saved:
            there.append(now)
        newest = sorted(there)[-KEEP:]
        there = [time for time in there if time in newest or now + MOMENT - time <= timedelta(hours=KEEP_HOURS)]
    return there


def folders(target):
    """Folder -> the names in it, of everything below a target."""
    found = {}
    for key in open_store(target).list(""):
        folder, _, name = key.partition("/")
        found.setdefault(folder, set()).add(name)
    return found
