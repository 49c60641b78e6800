"""A check of a DAG run's configuration: Airflow accepts and ignores parameters that the DAG does not have.

The DAGs of penstock name it in their `default_args` as `pre_execute`, so that each task calls it before its work.
"""

from __future__ import annotations

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException

from penstock.core.errors import UsageError, did_you_mean


def refuse_unknown_params(context: Context) -> None:
    """Fail the task, without a retry, if its run was given a parameter that its DAG does not have."""
    known = sorted(context["dag"].params)
    unknown = sorted(set(context["dag_run"].conf or {}) - set(known))
    if unknown:
        error = UsageError(f"unknown parameter {unknown[0]!r}", hint=did_you_mean(unknown[0], known))
        raise AirflowFailException(str(error))
