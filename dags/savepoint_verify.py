"""### Verify the newest savepoint, every night

Restores the newest savepoint of a job into a **scratch job** with a separate output, lets it process the input since
then, and compares: in each span of event time the scratch job must have written the same rows as the job itself. The
scratch job is always cancelled in the end. It runs every night if `PENSTOCK_VERIFY` in the environment of Airflow has
the parameters as JSON (`{"job": "order-totals", "target": ...}`), else when it is triggered. For more jobs, copy this
file.

| parameter | |
|---|---|
| `job` | id or name of the running job |
| `target` | folder or `s3://` prefix of its savepoints |
| `job_file` | path of the job's file on the workers |
| `environment` | variables that make the job file write to the scratch output: `{"ORDERS_OUTPUT": "totals-verify"}` |
| `scratch_root` | checkpoint root of the scratch job |
| `live` | the job's output: `kafka://HOST:PORT/TOPIC` (JSON), or a folder of the file sink |
| `scratch` | the scratch job's output, of the same kind |
| `column` | column with the time, such as `window_start` |
| `span_seconds` | rows are compared in spans of this length: a multiple of the windows' |
| `window_seconds` | windows' length, if `column` is their start: those open at the savepoint are compared too |
| `compare` | `rows`, or only their `counts`: for rows that differ when they are computed again (sums of floats) |

The cluster needs free slots for the scratch job. It is a fork (`no_claim`): it does not touch the job's
pending output. Its sinks must differ from the job's.
"""

import json
import os
from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG, Param

from penstock_airflow.known_params import refuse_unknown_params
from penstock_airflow.operators.job import CancelJobOperator
from penstock_airflow.operators.savepoint import NewestSavepointOperator
from penstock_airflow.operators.submit import SubmitJobOperator
from penstock_airflow.operators.verify import CompareOutputsOperator
from penstock_airflow.sensors.job import CheckpointSensor, WatermarkSensor

GIVEN = json.loads(os.environ.get("PENSTOCK_VERIFY") or "{}")
SCRATCH = "{{ ti.xcom_pull('newest')['name'] }}-verify"

with DAG(
    dag_id="savepoint_verify",
    schedule="30 2 * * *" if GIVEN else None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    doc_md=__doc__,
    tags=["penstock"],
    default_args={"pre_execute": refuse_unknown_params, "retries": 1, "retry_delay": timedelta(minutes=1)},
    params={
        "job": Param(GIVEN.get("job", ""), type="string", minLength=1, title="Job", description="Id or name."),
        "target": Param(GIVEN.get("target", ""), type="string", minLength=1, title="Where savepoints lie"),
        "job_file": Param(GIVEN.get("job_file", ""), type="string", minLength=1, title="Job file"),
        "environment": Param(GIVEN.get("environment", {}), type="object", minProperties=1, title="Variables"),
        "scratch_root": Param(GIVEN.get("scratch_root", ""), type="string", minLength=1, title="Its checkpoint root"),
        "live": Param(GIVEN.get("live", ""), type="string", minLength=1, title="Output of the job"),
        "scratch": Param(GIVEN.get("scratch", ""), type="string", minLength=1, title="Output of the scratch job"),
        "column": Param(GIVEN.get("column", "window_start"), type="string", minLength=1, title="Column with the time"),
        "span_seconds": Param(GIVEN.get("span_seconds", 60), type="number", exclusiveMinimum=0, title="Seconds a span"),
        "window_seconds": Param(GIVEN.get("window_seconds", 0), type="number", minimum=0, title="Seconds a window"),
        "compare": Param(GIVEN.get("compare", "rows"), enum=["rows", "counts"], title="What is compared"),
    },
):
    newest = NewestSavepointOperator(task_id="newest", job="{{ params.job }}", target="{{ params.target }}")
    restore = SubmitJobOperator(
        task_id="restore",
        job_file="{{ params.job_file }}",
        from_uri="{{ ti.xcom_pull('newest')['location'] }}",
        options={
            "name": SCRATCH,
            "no_claim": True,
            "accept_duplicates": True,  # it starts after its output of the night before
            "environment": "{{ params.environment | tojson }}",
            "settings": '{"checkpoint_root": {{ params.scratch_root | tojson }}}',
        },
    )
    caught_up = WatermarkSensor(task_id="caught_up", job=SCRATCH, watermark="{{ ti.xcom_pull('newest')['watermark'] }}")
    written = CheckpointSensor(task_id="written", job=SCRATCH)
    compare = CompareOutputsOperator(
        task_id="compare",
        live="{{ params.live }}",
        scratch="{{ params.scratch }}",
        column="{{ params.column }}",
        span_seconds="{{ params.span_seconds }}",
        window_seconds="{{ params.window_seconds }}",
        compare="{{ params.compare }}",
        newest="{{ ti.xcom_pull('newest') | tojson }}",
        retries=0,
    )
    cancel = CancelJobOperator(task_id="cancel", job=SCRATCH, or_ended=True)
    newest >> restore >> caught_up >> written >> compare >> cancel.as_teardown()
