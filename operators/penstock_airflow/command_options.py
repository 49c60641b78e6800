"""Options of the commands that operators run, from rendered templates to command line arguments.

A table for each command lists its options and their kinds; nothing here depends on Airflow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from penstock.core.errors import UsageError
from penstock_airflow import templated

Kind = Literal["flag", "text", "count", "amount", "texts", "settings", "pairs", "environment"]

#: Options for reading a job file, the same in every command; `environment` becomes that of its process.
_JOB_FILE_OPTIONS: dict[str, Kind] = {"settings": "settings", "environment": "environment"}
_DROPPED_STATE: dict[str, Kind] = {"allow_non_restored_state": "texts"}
RUN: dict[str, Kind] = {
    "fresh": "flag",
    "no_claim": "flag",
    "accept_duplicates": "flag",
    "attach": "flag",
    "name": "text",
    **_DROPPED_STATE,
    **_JOB_FILE_OPTIONS,
}
CHECK: dict[str, Kind] = {**_DROPPED_STATE, **_JOB_FILE_OPTIONS}
UPGRADE: dict[str, Kind] = {
    "checkpoints": "count",
    "max_restarts": "amount",
    "deadline": "text",
    "from_checkpoint": "flag",
    "target": "text",
    "canonical": "flag",
    "no_rollback": "flag",
    "accept": "texts",
    **_DROPPED_STATE,
    **_JOB_FILE_OPTIONS,
}
#: Options about tables with the first part of a history.
_TABLES: dict[str, Kind] = {"history": "texts", "offsets": "texts", "sparse": "texts", "cut_over": "text"}
CHECK_BACKFILL: dict[str, Kind] = {"until": "text", "accept": "texts", **_TABLES, **_JOB_FILE_OPTIONS}
BACKFILL: dict[str, Kind] = {"master": "text", "spark_conf": "pairs", "parts": "count", **CHECK_BACKFILL}
#: Options of every command that rewrites state.
_REWRITE: dict[str, Kind] = {
    "engine": "text",
    "master": "text",
    "spark_above": "amount",
    "spark_conf": "pairs",
    "checkpoint": "count",
}
PREPARE: dict[str, Kind] = {"uid": "text", "key": "texts", **_REWRITE}
REPARTITION: dict[str, Kind] = {"key_groups": "count", "prepared": "text", **_REWRITE}


def environment_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the environment variables for a job file."""
    return templated.mapping("environment", options.get("environment"))


def arguments_of(options: Mapping[str, Any], kinds: Mapping[str, Kind]) -> list[str]:
    """Return the options as arguments; those that are not given are left out.

    Raises:
        UsageError: an option does not exist, or a value has the wrong form.
    """
    unknown = sorted(set(options) - set(kinds))
    if unknown:
        raise UsageError(f"unknown options {', '.join(unknown)}", hint=f"there are {', '.join(kinds)}")
    found: list[str] = []
    for name, value in options.items():
        found += _one(name, value, kinds[name])
    return found


def _one(name: str, value: Any, kind: Kind) -> list[str]:
    flag = f"--{name.replace('_', '-')}"
    if kind == "flag":
        return [flag] if templated.flag(name, value) else []
    if kind == "texts":
        return [part for text in templated.texts(name, value) for part in (flag, text)]
    if kind in ("settings", "pairs"):
        flag = "--set" if kind == "settings" else flag
        return [part for key, text in templated.mapping(name, value).items() for part in (flag, f"{key}={text}")]
    if kind == "environment":
        return []
    if not templated.text(value):
        return []
    if kind == "count":
        return [flag, str(templated.count(name, value))]
    if kind == "amount":
        return [flag, str(int(templated.amount(name, value)))]
    return [flag, templated.text(value)]
