"""### Rewrite a snapshot with another number of key groups

Reads a savepoint, or a checkpoint of a job's folder, and writes it as a new savepoint: merged, and partitioned by the
new number of key groups. No job or cluster has to run. The task's result has the new savepoint's `location`: pass it to
`job_submit` as `from_uri`, with a job file that sets this number of key groups.

| parameter | |
|---|---|
| `snapshot` | a savepoint, or `CHECKPOINT_ROOT/JOB` for its newest checkpoint |
| `target` | folder or `s3://` prefix below which the new savepoint gets a folder |
| `key_groups` | new number of key groups; empty: unchanged |
| `checkpoint` | sequence of a checkpoint in a job's folder; empty: the newest |
| `engine` | `auto` (Spark above a size), `local` (the worker's own process) or `spark` |
| `master` | Spark master: `spark://host:7077`, `local[4]`; empty: all cores of the worker |
| `spark_above` | bytes above which `auto` uses Spark; empty: `PENSTOCK_SPARK_ABOVE` of the worker, else 1 GiB |
| `spark_conf` | settings of Spark, e.g. `{"spark.executor.memory": "4g"}` |

Spark has to be installed for the `python` of the connection, on the workers. With `auto` and no master, the worker does
the work itself if it has no Spark.
"""

from datetime import timedelta

from airflow.sdk import DAG, Param

from penstock_airflow.known_params import refuse_unknown_params
from penstock_airflow.operators.state import RepartitionStateOperator

with DAG(
    dag_id="state_repartition",
    schedule=None,
    doc_md=__doc__,
    tags=["penstock"],
    default_args={"pre_execute": refuse_unknown_params, "retries": 2, "retry_delay": timedelta(seconds=10)},
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
