"""### Rescale a running job

**In place** (without `rewrite_to`): restarts the job with another parallelism from a new checkpoint, and succeeds when
the job **runs with it**. No file is rewritten, whatever the size of the state. If that is not possible (not enough
slots, no checkpoint), the task fails and the job continues as before.

**Rewritten** (with `rewrite_to`): moves the state to another store or bucket, with another number of key groups if
you give one. `prepare` rewrites the state's large files while the job runs, on Spark if there is much. `cancel` ends
the job, `repartition` writes what has changed since into a savepoint, and `submit` starts the job file from there. If
a task after `cancel` fails, clear it, or start the job again from its newest checkpoint with `job_submit`.

| parameter | |
|---|---|
| `job` | id or name |
| `parallelism` | for all parts of the job that have the job's own |
| `vertices` | in place: for single vertices, by the uid of an operator: `{"totals": 3}` |
| `rewrite_to` | folder or `s3://` prefix of the rewritten state; empty: in place |
| `checkpoints` | rewritten: the job's folder, `CHECKPOINT_ROOT/JOB` |
| `job_file` | rewritten: path of the job file on the workers |
| `key_groups` | rewritten: number of key groups; set the same in `settings` or in the file; empty: unchanged |
| `master` | rewritten: Spark master; the connection's `python` then needs PySpark; empty: all cores of the worker |
| `spark_conf` | rewritten: settings of Spark, e.g. `{"spark.executor.memory": "4g"}` |
| `spark_above` | rewritten: bytes above which Spark is used; empty: `PENSTOCK_SPARK_ABOVE` of the worker, else 1 GiB |
| `settings` | rewritten: settings of the job, such as `{"checkpoint_root": "s3://new/checkpoints"}` |
| `environment` | rewritten: environment variables for the job file |
"""

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, task
from airflow.sdk.exceptions import AirflowFailException

from penstock_airflow.known_params import refuse_unknown_params
from penstock_airflow.operators.job import CancelJobOperator, RescaleJobOperator
from penstock_airflow.operators.state import PrepareStateOperator, RepartitionStateOperator
from penstock_airflow.operators.submit import SubmitJobOperator

with DAG(
    dag_id="job_rescale",
    schedule=None,
    doc_md=__doc__,
    tags=["penstock"],
    default_args={"pre_execute": refuse_unknown_params, "retries": 2, "retry_delay": timedelta(seconds=10)},
    params={
        "job": Param(type="string", minLength=1, title="Job", description="Id or name."),
        "parallelism": Param(None, type=["integer", "null"], minimum=1, maximum=32768, title="Parallelism"),
        "vertices": Param({}, type="object", title="Single vertices", description="uid of an operator: parallelism"),
        "rewrite_to": Param(None, type=["string", "null"], minLength=1, title="Where the rewritten state goes"),
        "checkpoints": Param(None, type=["string", "null"], minLength=1, title="The job's folder of checkpoints"),
        "job_file": Param(None, type=["string", "null"], minLength=1, title="Job file"),
        "key_groups": Param(None, type=["integer", "null"], minimum=1, maximum=32768, title="Key groups"),
        "master": Param(None, type=["string", "null"], title="Master of Spark"),
        "spark_above": Param(None, type=["integer", "null"], minimum=0, title="Bytes above which Spark works"),
        "spark_conf": Param({}, type="object", title="Settings of Spark"),
        "settings": Param({}, type="object", title="Settings", description="Names as in docs/reference/settings.md."),
        "environment": Param({}, type="object", title="Variables"),
    },
):

    @task.branch
    def way(params: dict[str, Any]) -> str:
        """Return the first task of the way that was chosen."""
        if not params["rewrite_to"]:
            return "rescale"
        missing = [name for name in ("checkpoints", "job_file") if not params[name]]
        if missing:
            raise AirflowFailException(f"rewrite_to is given without {' and '.join(missing)}")
        return "prepare"

    checkpoints, folder = (
        "{{ params.checkpoints }}",
        "{{ params.rewrite_to }}/prepared-{{ run_id | replace(':', '-') | replace('+', '-') }}",
    )
    spark = {name: f"{{{{ params.{name} }}}}" for name in ("master", "spark_above")}
    spark["spark_conf"] = "{{ params.spark_conf | tojson }}"
    rescale = RescaleJobOperator(
        task_id="rescale",
        job="{{ params.job }}",
        parallelism="{{ params.parallelism }}",
        vertices="{{ params.vertices | tojson }}",
    )
    prepare = PrepareStateOperator(task_id="prepare", snapshot=checkpoints, folder=folder, options=spark)
    cancel = CancelJobOperator(task_id="cancel", job="{{ params.job }}", or_ended=True)
    repartition = RepartitionStateOperator(
        task_id="repartition",
        snapshot=checkpoints,
        target="{{ params.rewrite_to }}",
        key_groups="{{ params.key_groups }}",
        options={**spark, "prepared": folder},
    )
    submit = SubmitJobOperator(
        task_id="submit",
        job_file="{{ params.job_file }}",
        parallelism="{{ params.parallelism }}",
        from_uri="{{ ti.xcom_pull('repartition')['location'] }}",
        options={name: f"{{{{ params.{name} | tojson }}}}" for name in ("settings", "environment")} | {"attach": False},
    )
    way() >> [rescale, prepare]
    prepare >> cancel >> repartition >> submit
