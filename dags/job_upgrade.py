"""### Upgrade a running job

Replaces a running job by the job of a file. `check` tells whether the state of the running job fits the new version; it
stops nothing. `upgrade` stops the old version with a savepoint and starts the new one from there, **on trial**: its
output is withheld. It is healthy when it has completed its checkpoints without more restarts than allowed; then its
output is released, and the run succeeds. If not, **the old version runs again** from the savepoint, no output of the
new one is ever published, and the run fails with the reason in one line.

| parameter | |
|---|---|
| `job` | id or name of the running job |
| `job_file` | path of the new version on the workers; same job name and checkpoint root |
| `parallelism` | of the new version; empty: that of the running one |
| `checkpoints` | number of checkpoints it has to complete |
| `max_restarts` | number of restarts allowed meanwhile |
| `deadline` | time limit to become healthy, from its start: `5m`, `90s` |
| `settings` | settings of the job, such as `{"checkpoint_interval_ms": 5000}` |
| `environment` | environment variables for the job file |
| `allow_non_restored_state` | state that the new version no longer has: `["totals", "dedup/seen"]` |
| `on_kill` | when a user ends the waiting task: roll back to the old version, or continue the upgrade |

The task's result has the `location` of the savepoint. To go back after the run has succeeded, use `job_stop`, then
`job_submit` of the old file with `from_uri`.
"""

from datetime import timedelta

from airflow.sdk import DAG, Param

from penstock_airflow.known_params import refuse_unknown_params
from penstock_airflow.operators.upgrade import CheckJobOperator, UpgradeJobOperator

with DAG(
    dag_id="job_upgrade",
    schedule=None,
    doc_md=__doc__,
    tags=["penstock"],
    default_args={"pre_execute": refuse_unknown_params, "retries": 2, "retry_delay": timedelta(seconds=10)},
    params={
        "job": Param(type="string", minLength=1, title="Job", description="Id or name."),
        "job_file": Param(type="string", minLength=1, title="Job file", description="Path on the workers of Airflow."),
        "parallelism": Param(None, type=["integer", "null"], minimum=1, maximum=32768, title="Parallelism"),
        "checkpoints": Param(3, type="integer", minimum=1, title="Checkpoints to complete"),
        "max_restarts": Param(0, type="integer", minimum=0, title="Restarts allowed"),
        "deadline": Param("5m", type="string", pattern=r"^[0-9]+(ms|s|m|h|d)$", title="Healthy within"),
        "settings": Param({}, type="object", title="Settings", description="Names as in docs/reference/settings.md."),
        "environment": Param({}, type="object", title="Variables"),
        "allow_non_restored_state": Param([], type="array", items={"type": "string"}, title="State to drop"),
        "on_kill": Param("take_back", enum=["take_back", "keep"], title="When a user ends the task while it waits"),
    },
):
    new = {"job": "{{ params.job }}", "job_file": "{{ params.job_file }}", "parallelism": "{{ params.parallelism }}"}
    fit = {
        "settings": "{{ params.settings | tojson }}",
        "environment": "{{ params.environment | tojson }}",
        "allow_non_restored_state": "{{ params.allow_non_restored_state | tojson }}",
    }
    trial = {name: f"{{{{ params.{name} }}}}" for name in ("checkpoints", "max_restarts", "deadline")}
    check = CheckJobOperator(task_id="check", **new, options=fit)
    upgrade = UpgradeJobOperator(task_id="upgrade", **new, options={**fit, **trial}, on_kill="{{ params.on_kill }}")
    check >> upgrade
