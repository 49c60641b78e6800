"""### Rescale a running job

Restarts a running job with another parallelism from a new checkpoint, and succeeds when the job **runs with it**. If
that is not possible (not enough slots, no checkpoint), the task fails and the job continues as before.

| parameter | |
|---|---|
| `job` | id or name |
| `parallelism` | for all parts of the job that have the job's own |
| `vertices` | for single vertices, by the uid of an operator: `{"totals": 3}` |
"""

from datetime import timedelta

from airflow.sdk import DAG, Param

from penstock_airflow.operators.job import RescaleJobOperator

with DAG(
    dag_id="job_rescale",
    schedule=None,
    doc_md=__doc__,
    tags=["penstock"],
    default_args={"retries": 2, "retry_delay": timedelta(seconds=10)},
    params={
        "job": Param(type="string", minLength=1, title="Job", description="Id or name."),
        "parallelism": Param(None, type=["integer", "null"], minimum=1, maximum=32768, title="Parallelism"),
        "vertices": Param({}, type="object", title="Single vertices", description="uid of an operator: parallelism"),
    },
):
    RescaleJobOperator(
        task_id="rescale",
        job="{{ params.job }}",
        parallelism="{{ params.parallelism }}",
        vertices="{{ params.vertices | tojson }}",
    )
