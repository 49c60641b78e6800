"""### Savepoints on a schedule

Takes a savepoint of a job, removes those that are older than needed, and raises the alarm when the newest is too old.
The last two steps also run when the savepoint has failed, so that the alarm works. It runs every six hours for the job
that `PENSTOCK_SAVEPOINT_JOB` names in the environment of Airflow, with savepoints below `PENSTOCK_SAVEPOINT_TARGET`. If
these are not set, it runs only when it is triggered. For more jobs, copy this file.

| parameter | |
|---|---|
| `job` | id or name |
| `target` | folder or `s3://` prefix of the savepoints of this job, or of several (with separate retention) |
| `keep` | number of newest savepoints that always stay |
| `keep_hours` | younger savepoints stay, too |
| `alarm_hours` | the run fails when the newest savepoint is older; 0: never |

The age of a savepoint counts from the moment it was taken, not from the logical date of the run. A late run (`catchup`,
a backfill of Airflow) would take another savepoint of the present, so `catchup` is off. A failed savepoint or removal
fails its task; only the alarm fails the run.

A savepoint that a job still reads from is not removed. The newest one can be given to `job_submit` as `from_uri`. Other
DAGs can be scheduled on the asset `penstock_savepoint`; its event has `job_id` and `location`.
"""

import os
from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG, Asset, Param, TriggerRule

from penstock_airflow.known_params import refuse_unknown_params
from penstock_airflow.operators.savepoint import (
    CheckSavepointAgeOperator,
    CleanSavepointsOperator,
    TriggerSavepointOperator,
)

JOB = os.environ.get("PENSTOCK_SAVEPOINT_JOB", "")
TARGET = os.environ.get("PENSTOCK_SAVEPOINT_TARGET", "")

with DAG(
    dag_id="savepoint_schedule",
    schedule="0 */6 * * *" if JOB and TARGET else None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    doc_md=__doc__,
    tags=["penstock"],
    default_args={"pre_execute": refuse_unknown_params, "retries": 2, "retry_delay": timedelta(minutes=1)},
    params={
        "job": Param(JOB, type="string", minLength=1, title="Job", description="Id or name."),
        "target": Param(TARGET, type="string", minLength=1, title="Where savepoints go"),
        "keep": Param(7, type="integer", minimum=1, title="Newest to keep"),
        "keep_hours": Param(48, type="number", minimum=0, title="Hours to keep all"),
        "alarm_hours": Param(12, type="number", minimum=0, title="Alarm after hours"),
    },
):
    savepoint = TriggerSavepointOperator(
        task_id="savepoint",
        job="{{ params.job }}",
        target="{{ params.target }}",
        outlets=[Asset("penstock_savepoint")],
    )
    clean = CleanSavepointsOperator(
        task_id="clean",
        target="{{ params.target }}",
        keep="{{ params.keep }}",
        keep_hours="{{ params.keep_hours }}",
        trigger_rule=TriggerRule.ALL_DONE,
    )
    alarm = CheckSavepointAgeOperator(
        task_id="alarm",
        target="{{ params.target }}",
        alarm_hours="{{ params.alarm_hours }}",
        trigger_rule=TriggerRule.ALL_DONE,
        retries=0,
    )
    savepoint >> clean >> alarm
