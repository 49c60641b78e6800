"""### Write a snapshot anew with another number of key groups

Reads a savepoint, or a checkpoint of a job's folder, and writes it anew as a savepoint: merged, and cut as the new
number of key groups says. Nothing has to run. The task's result has the new savepoint's `location`: give it to
`job_submit` as `from_uri`, of a job file with that many key groups.

| parameter | |
|---|---|
| `snapshot` | a savepoint, or `CHECKPOINT_ROOT/JOB` for its newest checkpoint |
| `target` | folder or `s3://` prefix that gets a folder for the new savepoint |
| `key_groups` | their new number; empty: as many as it has |
| `checkpoint` | of a job's folder, the checkpoint of that sequence instead of the newest |
| `engine` | `auto` (Spark, if there is much), `local` (the worker's own process) or `spark` |
| `master` | of Spark: `spark://host:7077`, `local[4]`; empty: all cores of the worker |
| `spark_above` | bytes of state that are much; empty: `PENSTOCK_SPARK_ABOVE` of the worker, else 1 GiB |
| `spark_conf` | settings of Spark, e.g. `{"spark.executor.memory": "4g"}` |

Spark is that of the `python` of the connection, on the workers; with `auto`, without a master, they do without one.
"""

from datetime import timedelta

from airflow.sdk import DAG, Param

from penstock_airflow.operators.state import RepartitionStateOperator

with DAG(
    dag_id="state_repartition",
    schedule=None,
    doc_md=__doc__,
    tags=["penstock"],
    default_args={"retries": 2, "retry_delay": timedelta(seconds=10)},
    params={
        "snapshot": Param(type="string", minLength=1, title="Snapshot"),
        "target": Param(type="string", minLength=1, title="Where the new savepoint goes"),
        "key_groups": Param(None, type=["integer", "null"], minimum=1, maximum=32768, title="Key groups"),
        "checkpoint": Param(None, type=["integer", "null"], minimum=1, title="Checkpoint"),
        "engine": Param("auto", enum=["auto", "local", "spark"], title="Who does the work"),
        "master": Param(None, type=["string", "null"], title="Master of Spark"),
        "spark_above": Param(None, type=["integer", "null"], minimum=0, title="Bytes above which Spark works"),
        "spark_conf": Param({}, type="object", title="Settings of Spark"),
    },
):
    RepartitionStateOperator(
        task_id="repartition",
        snapshot="{{ params.snapshot }}",
        target="{{ params.target }}",
        key_groups="{{ params.key_groups }}",
        options={name: f"{{{{ params.{name} }}}}" for name in ("checkpoint", "engine", "master", "spark_above")}
        | {"spark_conf": "{{ params.spark_conf | tojson }}"},
    )
