"""### Savepoints on a schedule

Every six hours: takes a savepoint of a job, removes those that are older than needed, and raises the alarm when the
newest is too old. The last two also run when the savepoint has failed: that is what the alarm is for. It is paused
when it is new: set the defaults of the parameters to your job, then let it go.

| parameter | |
|---|---|
| `job` | id or name |
| `target` | folder or `s3://` prefix of the savepoints: of this job alone, or of several (each has its own retention) |
| `keep` | so many of the newest always stay |
| `keep_hours` | those that are younger stay, too |
| `alarm_hours` | the run fails when the newest savepoint is older; 0: never |

A savepoint that a job still reads from is not removed. The newest one can be given to `job_submit` as `from_uri`. Other
DAGs can be scheduled on the asset `penstock_savepoint`; its event has `job_id` and `location`.
"""

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG, Asset, Param, TriggerRule

from penstock_airflow.operators.savepoint import (
    CheckSavepointAgeOperator,
    CleanSavepointsOperator,
    TriggerSavepointOperator,
)

with DAG(
    dag_id="savepoint_schedule",
    schedule="0 */6 * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,
    doc_md=__doc__,
    tags=["penstock"],
    default_args={"retries": 2, "retry_delay": timedelta(minutes=1)},
    params={
        "job": Param("order-totals", type="string", minLength=1, title="Job", description="Id or name."),
        "target": Param("s3://savepoints/order-totals", type="string", minLength=1, title="Where savepoints go"),
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
