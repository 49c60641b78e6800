"""### Start a job after a backfill of its history

For a job that starts with years of history. `check` tells whether the job gives the same result in a batch as live; it
reads only the footers of tables. `backfill` runs the **same job file** over the data of its sources up to an end
position, as a batch, and writes a savepoint: the end positions, all state, and all output, **staged**. `submit` starts
the job from there: it publishes that output once and continues live. The run succeeds when the job runs and its first
checkpoint is complete.

| parameter | |
|---|---|
| `job_file` | path of the job file on the workers |
| `target` | folder or `s3://` prefix below which the savepoint gets a folder; the cluster has to reach it too |
| `until` | `latest`, a time of writing (`2026-01-31`), positions (`orders-0=12,...`), or `cut-over` (tables only) |
| `master` | Spark master that does the work: `spark://host:7077`, `local[4]`; empty: the worker's own process |
| `spark_conf` | settings of Spark, e.g. `{"spark.executor.memory": "4g"}`; they need a `master` |
| `parts` | key ranges, each the work of one task |
| `history` | Parquet files with the first part of a source's history, by its uid: `["orders=s3://lake/orders"]` |
| `offsets` | its columns with a row's position in the topic: `["orders=partition,offset"]` (or `...,topic`) |
| `sparse` | sources in whose table offsets may be missing (transactions, compaction): `["orders"]` |
| `cut_over` | where the topic follows the table: `orders-0=12,...`, or a time of writing; empty: the table's end |
| `accept` | operators to accept although they do not qualify: `["totals"]` |
| `parallelism` | of the live job, instead of the file's own |
| `settings` | settings of the job, such as `{"checkpoint_interval_ms": 5000}` |
| `environment` | environment variables for the job file |
| `on_kill` | action on the live job when a user ends the waiting task |

The job must not be running: `check` fails then, and `submit` fails if one was started meanwhile. A repeated task uses
the savepoint that an earlier try has finished. Spark has to be installed for the `python` of the connection, on the
workers.
"""

from datetime import timedelta

from airflow.sdk import DAG, Param

from penstock_airflow.known_params import refuse_unknown_params
from penstock_airflow.operators.backfill import BackfillOperator, CheckBackfillOperator
from penstock_airflow.operators.submit import SubmitJobOperator

#: UID=VALUE, as the commands take it.
_OF_A_SOURCE = r"^[^=]+=.+$"
_COLUMNS = r"^[^=]+=[^,]+,[^,]+(,[^,]+)?$"


def _texts(title: str, pattern: str = "^.+$") -> Param:
    return Param([], type="array", items={"type": "string", "pattern": pattern}, title=title)


with DAG(
    dag_id="job_backfill",
    schedule=None,
    doc_md=__doc__,
    tags=["penstock"],
    default_args={"pre_execute": refuse_unknown_params, "retries": 2, "retry_delay": timedelta(seconds=10)},
    params={
        "job_file": Param(type="string", minLength=1, title="Job file", description="Path on the workers of Airflow."),
        "target": Param(type="string", minLength=1, title="Where the savepoint goes"),
        "until": Param("latest", type="string", minLength=1, title="Up to"),
        "master": Param(None, type=["string", "null"], title="Master of Spark"),
        "spark_conf": Param({}, type="object", propertyNames={"pattern": r"^spark\..+$"}, title="Settings of Spark"),
        "parts": Param(16, type="integer", minimum=1, title="Key ranges"),
        "accept": Param([], type="array", items={"type": "string"}, title="Operators to accept"),
        "history": _texts("Tables with the first part", _OF_A_SOURCE),
        "offsets": _texts("Their columns of partition and offset", _COLUMNS),
        "sparse": _texts("Tables in which offsets may be missing"),
        "cut_over": Param(None, type=["string", "null"], minLength=1, title="From where on the topic"),
        "parallelism": Param(None, type=["integer", "null"], minimum=1, maximum=32768, title="Parallelism"),
        "settings": Param({}, type="object", title="Settings", description="Names as in docs/reference/settings.md."),
        "environment": Param({}, type="object", title="Variables"),
        "on_kill": Param("cancel", enum=["cancel", "keep"], title="When a user ends the task while it waits"),
    },
):
    job_file = "{{ params.job_file }}"
    read = {name: f"{{{{ params.{name} | tojson }}}}" for name in ("settings", "environment")}
    lists = {name: f"{{{{ params.{name} | tojson }}}}" for name in ("accept", "history", "offsets", "sparse")}
    fit = {**read, **lists, "cut_over": "{{ params.cut_over }}", "until": "{{ params.until }}"}
    work = {name: f"{{{{ params.{name} }}}}" for name in ("master", "parts")}
    work["spark_conf"] = "{{ params.spark_conf | tojson }}"
    check = CheckBackfillOperator(task_id="check", job_file=job_file, options=fit)
    backfill = BackfillOperator(
        task_id="backfill", job_file=job_file, target="{{ params.target }}", options={**fit, **work}
    )
    submit = SubmitJobOperator(
        task_id="submit",
        job_file=job_file,
        parallelism="{{ params.parallelism }}",
        from_uri="{{ ti.xcom_pull('backfill')['location'] }}",
        options={**read, "attach": False},
        on_kill="{{ params.on_kill }}",
    )
    check >> backfill >> submit
