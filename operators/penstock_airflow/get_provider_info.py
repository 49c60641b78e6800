"""Provider metadata, read by Airflow's provider discovery through the entry point in pyproject.toml.

Imports nothing: Airflow's command line and API server read it at every start.
"""

from __future__ import annotations

from typing import Any

_FIELD_BEHAVIOUR: dict[str, Any] = {
    "hidden-fields": ["login"],
    "relabeling": {"schema": "Scheme", "password": "API token"},
    # Airflow's test button sends an empty port as 0, which differs from the stored connection, and is then refused
    "placeholders": {"host": "127.0.0.1", "port": "8081 (fill it in to test)", "schema": "http"},
}

_FIELDS: dict[str, Any] = {
    "timeout": {
        "label": "Time-out",
        "description": "Time limit of a request in seconds.",
        "schema": {"type": ["number", "null"], "minimum": 1, "default": 30},
    },
    "job_page": {
        "label": "Job page",
        "description": "Target of task links: {url} is the cluster's address, {job_id} the job's id.",
        "schema": {"type": ["string", "null"]},
    },
    "ca": {
        "label": "CA file",
        "description": "File with trusted certificates, on every host of Airflow; default: the system's.",
        "schema": {"type": ["string", "null"]},
    },
    "python": {
        "label": "Python of the jobs",
        "description": "Interpreter on Airflow's workers with the packages of job files; default: Airflow's own.",
        "schema": {"type": ["string", "null"]},
    },
}


def get_provider_info() -> dict[str, Any]:
    """Describe this provider to Airflow; the package name must equal the distribution's name."""
    name = "penstock"
    return {
        "package-name": name,
        "name": name,
        "description": "Jobs of penstock: exactly-once stream processing in Python.",
        "connection-types": [
            {
                "connection-type": name,
                "hook-class-name": "penstock_airflow.hooks.penstock.PenstockHook",
                "hook-name": name,
                "ui-field-behaviour": _FIELD_BEHAVIOUR,
                "conn-fields": _FIELDS,
            }
        ],
        "hooks": [{"integration-name": name, "python-modules": ["penstock_airflow.hooks.penstock"]}],
        "operators": [
            {
                "integration-name": name,
                "python-modules": [
                    "penstock_airflow.operators.submit",
                    "penstock_airflow.operators.savepoint",
                    "penstock_airflow.operators.job",
                    "penstock_airflow.operators.upgrade",
                    "penstock_airflow.operators.state",
                    "penstock_airflow.operators.backfill",
                    "penstock_airflow.operators.verify",
                ],
            }
        ],
        "sensors": [{"integration-name": name, "python-modules": ["penstock_airflow.sensors.job"]}],
        "triggers": [
            {
                "integration-name": name,
                "python-modules": ["penstock_airflow.triggers.job", "penstock_airflow.triggers.events"],
            }
        ],
        "extra-links": ["penstock_airflow.links.JobLink"],
    }
