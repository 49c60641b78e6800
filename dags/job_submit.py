"""### Start a job

Runs a job file on a worker of Airflow, as `penstock run FILE --cluster ...` does, and succeeds when the job **runs and
its first checkpoint is complete** (or has finished, if its input ends). The job then lives on the cluster; this run
does not wait for its end.

| parameter | |
|---|---|
| `job_file` | path of the job file on the workers |
| `parallelism` | instead of the job's own |
| `from_uri` | a savepoint to start from; empty: the job's own newest checkpoint, if there is one |
| `settings` | settings of the job, such as `{"checkpoint_interval_ms": 5000}` |
| `environment` | environment variables for the job file |
| `fresh` | begin a new history and ignore existing checkpoints |
| `on_kill` | action on the job when a user ends the waiting task |

Triggered twice, it starts only one job: a running job of the same name and checkpoint root counts as this one. The link
*Job* of the task leads to the job's page.
"""

from datetime import timedelta

from airflow.sdk import DAG, Param

from penstock_airflow.known_params import refuse_unknown_params
from penstock_airflow.operators.submit import SubmitJobOperator

with DAG(
    dag_id="job_submit",
    schedule=None,
    doc_md=__doc__,
    tags=["penstock"],
    default_args={"pre_execute": refuse_unknown_params, "retries": 2, "retry_delay": timedelta(seconds=10)},
    params={
        "job_file": Param(type="string", minLength=1, title="Job file", description="Path on the workers of Airflow."),
        "parallelism": Param(None, type=["integer", "null"], minimum=1, maximum=32768, title="Parallelism"),
        "from_uri": Param(None, type=["string", "null"], title="Savepoint", description="Folder or s3:// address."),
        "settings": Param({}, type="object", title="Settings", description="Names as in docs/reference/settings.md."),
        "environment": Param({}, type="object", title="Variables"),
        "fresh": Param(False, type="boolean", title="Begin a new history"),
        "on_kill": Param("cancel", enum=["cancel", "keep"], title="When a user ends the task while it waits"),
    },
):
    SubmitJobOperator(
        task_id="submit",
        job_file="{{ params.job_file }}",
        parallelism="{{ params.parallelism }}",
        from_uri="{{ params.from_uri }}",
        options={
            "settings": "{{ params.settings | tojson }}",
            "environment": "{{ params.environment | tojson }}",
            "fresh": "{{ params.fresh }}",
        },
        on_kill="{{ params.on_kill }}",
    )
