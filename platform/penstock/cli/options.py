"""Options shared by the commands, and the lookup of a command's cluster."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli.restart_wait import RestartWait, local_cluster
from penstock.client.access import ClientAccess, access_of
from penstock.client.executors import ClusterExecutor, SubmitOptions
from penstock.client.handle import TERMINAL, JobHandle
from penstock.client.rest_client import RestClient
from penstock.config.config_file import configuration, home
from penstock.config.security import FOLDER_VARIABLE
from penstock.core.errors import NotFoundError, UsageError, nearest

ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        help="URL of a JobManager, URL,URL or HA root; default: $PENSTOCK_CLUSTER, else the local one.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

SettingsOption = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a setting.")]

NativeOption = Annotated[
    bool, typer.Option("--native", help="Copy the checkpoint's files as they are: sooner, and only for penstock.")
]
TokenOption = Annotated[str, typer.Option(help="Calls with the same token count once.")]

SecurityOption = Annotated[
    str | None, typer.Option(help="Folder with certificates, tokens, secret; default: $PENSTOCK_SECURITY.")
]
InsecureOption = Annotated[
    bool | None, typer.Option("--insecure", help="Listen on addresses that others can reach, without TLS and tokens.")
]
OtlpOption = Annotated[
    str | None, typer.Option(help="Collector URL for spans (OTLP over HTTP); default: $PENSTOCK_OTLP_ENDPOINT.")
]
LogFormatOption = Annotated[str | None, typer.Option(help="Log format: text or json; default: $PENSTOCK_LOG_FORMAT.")]


def cluster_file() -> Path:
    """Return the file that contains the local cluster's address."""
    return home() / "cluster.json"


def connect(cluster: str | None) -> RestClient:
    """Return a client of the given cluster, of $PENSTOCK_CLUSTER, or of the local cluster.

    Raises:
        UsageError: no cluster is known.
    """
    url, access = _cluster_of(cluster)
    return RestClient(url, access, retry=RestartWait(url, cluster_file()))


def cluster_executor(cluster: str | None, options: SubmitOptions) -> ClusterExecutor:
    """Return an executor for the same cluster as `connect`.

    Raises:
        UsageError: no cluster is known.
    """
    url, access = _cluster_of(cluster)
    return ClusterExecutor(url=url, options=options, access=access, cluster_option=cluster or "")


def beside_cluster() -> str:
    """Return a note for a job that runs embedded although a cluster runs or is named; empty if there is none."""
    url = configuration().settings.client.cluster
    if not url and (record := local_cluster(cluster_file())) is not None:
        url = record["rest"]
    if not url:
        return ""
    return f"runs in separate processes, not on the cluster at {url}; --detached or --cluster {url} runs it there"


def _cluster_of(cluster: str | None) -> tuple[str, ClientAccess]:
    url, access = cluster or configuration().settings.client.cluster, access_of()
    if not url and cluster_file().exists():
        record = json.loads(cluster_file().read_text(encoding="utf-8"))
        folder = {FOLDER_VARIABLE: record["security"]} if record.get("security") else {}
        url, access = record["rest"], access_of({**folder, **os.environ})
    if not url:
        msg = "no cluster is known"
        raise UsageError(msg, hint="start one with `penstock cluster start`, or pass --cluster URL")
    return url, access


def find_job(client: RestClient, job: str) -> dict[str, Any]:
    """Return the overview of a job by id, unique id prefix, or name (one that has not ended first, then the newest).

    Raises:
        NotFoundError: no job matches. UsageError: several do.
    """
    jobs = client.jobs()
    named = [j for j in jobs if j["name"] == job]
    if named:
        return max(named, key=lambda j: (j["state"] not in TERMINAL, int(j["start-time"])))
    found = [j for j in jobs if j["jid"].startswith(job)]
    if len(found) == 1:
        return found[0]
    hint = "`penstock list` shows ids and names"
    if not found:
        close = nearest(job, [j["name"] for j in jobs])
        hint = f"did you mean {close!r}? {hint}" if close else hint
        raise NotFoundError(f"no job {job!r}", hint=hint)
    raise UsageError(f"{len(found)} jobs have the id prefix {job!r}", hint=hint)


def job_to_change(client: RestClient, job: str, cluster: str | None, token: str = "") -> JobHandle:
    """Return the job that a command acts on; `cluster` is the command's `--cluster`.

    With a token the job may have ended: the answer to an earlier call is returned again.

    Raises:
        NotFoundError: no job matches. UsageError: several do, or the job has ended.
    """
    found = find_job(client, job)
    if found["state"] in TERMINAL and not token:
        msg = f"job {found['name']!r} ({found['jid']}) is {found['state']}"
        raise UsageError(msg, hint="only a running job takes requests; `penstock run` resumes it")
    return JobHandle(client, found["jid"], found["name"], cluster=cluster or "")


def print_json(value: object) -> None:
    """Print one JSON document on one line."""
    sys.stdout.write(json.dumps(value, separators=(",", ":"), default=str) + "\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """Print a line of text."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
