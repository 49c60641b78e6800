"""The link from a task to the page of its job. Shown by Airflow's UI; the operators store the address."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseOperatorLink
from airflow.sdk.bases.xcom import BaseXCom

#: Name of the XCom that holds the address.
LINK_KEY = "penstock_job_page"


class JobLink(BaseOperatorLink):
    """A link to the job's page; empty until the task knows its job."""

    name = "Job"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:  # noqa: ARG002 - Airflow's signature
        """Return the address."""
        return str(BaseXCom.get_value(key=LINK_KEY, ti_key=ti_key) or "")
