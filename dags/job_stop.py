"""### Stop a job

Takes a savepoint, ends the job, and succeeds when it **has ended**. The task's result has the savepoint's `location`:
pass it to `job_submit` as `from_uri`. Without `from_uri` the job continues from there as well.

| parameter | |
|---|---|
| `job` | id or name |
| `target` | folder or `s3://` prefix below which the savepoint gets a folder; empty: the job's own folder |
| `drain` | end event time first, so that all open windows fire: for a job that will not continue |
| `native` | copy the checkpoint's files as they are: sooner, but not plain rows |
"""

from datetime import timedelta

from airflow.sdk import DAG, Param

from penstock_airflow.known_params import refuse_unknown_params
from penstock_airflow.operators.job import StopJobOperator

with DAG(
    dag_id="job_stop",
    schedule=None,
    doc_md=__doc__,
    tags=["penstock"],
    default_args={"pre_execute": refuse_unknown_params, "retries": 2, "retry_delay": timedelta(seconds=10)},
    params={
        "job": Param(type="string", minLength=1, title="Job", description="Id or name."),
        "target": Param(None, type=["string", "null"], title="Where the savepoint goes"),
        "drain": Param(False, type="boolean", title="Fire all windows first"),
        "native": Param(False, type="boolean", title="Native format"),
    },
):
    given = {name: f"{{{{ params.{name} }}}}" for name in ("job", "target", "drain", "native")}
    StopJobOperator(task_id="stop", **given)
