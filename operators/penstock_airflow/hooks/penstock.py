"""The hook of every operator, sensor and trigger: a connection of type `penstock` as a client of its REST API.

A connection has the host and port of a JobManager; with standbys, the hosts of all with commas between them, each with
`:port` where it differs. `schema` is `http` (default) or `https`; its password is the API token. Its extra fields:
`timeout` (time limit of a request in seconds),
`job_page` (target of task links, with `{url}` and `{job_id}`), `python` (interpreter on Airflow's workers with the
packages of job files), `ca` (file with trusted certificates).
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from airflow.sdk import BaseHook, Connection

from penstock.client.access import CA_VARIABLE, TOKEN_VARIABLE, access_of
from penstock.client.rest_client import RestClient
from penstock.core.errors import PenstockError, UsageError

_T = TypeVar("_T")
_PORT = 8081
_HOST = re.compile(r"([^\s/:@,]+)(:\d+)?")
_JOB_PAGE = "{url}/ui/#/jobs/{job_id}"
_TIMEOUT_SECONDS, _LONGEST_SECONDS = 30.0, 86_400.0


@dataclass(frozen=True, slots=True)
class ClusterConnection:
    """A cluster, as a connection describes it."""

    url: str
    token: str = field(repr=False)
    timeout_seconds: float
    job_page: str
    python: str
    ca: str

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment with which a `penstock` command authenticates; never part of a command line."""
        named = {TOKEN_VARIABLE: self.token, CA_VARIABLE: self.ca}
        return {name: value for name, value in named.items() if value}

    def client(self) -> RestClient:
        """Return a client; it sends nothing at first."""
        access = access_of({**os.environ, **self.environment})
        return RestClient(self.url, timeout_seconds=self.timeout_seconds, access=access)

    def page_of(self, job_id: str) -> str:
        """Return the address of a job's page."""
        return self.job_page.format(url=self.url.partition(",")[0], job_id=job_id)


def place_of(connection: Connection, named: str = "") -> ClusterConnection:
    """Return the cluster of a connection; errors call it `named`, by default by its id.

    Raises:
        UsageError: its host, scheme or time-out is missing or invalid.
    """
    name = named or f"connection {connection.conn_id!r}"
    extra: dict[str, Any] = connection.extra_dejson
    scheme = connection.schema or "http"
    if not connection.host:
        raise UsageError(f"{name} has no host", hint="give the host of the JobManager's REST API")
    hosts = [_HOST.fullmatch(host.strip()) for host in connection.host.split(",")]
    if None in hosts:
        msg = f"{name} has the host {connection.host!r}"
        raise UsageError(msg, hint="give names or IPv4 addresses, such as a or a:8081,b:8082; the scheme has its field")
    if scheme not in ("http", "https"):
        raise UsageError(f"{name} has the schema {scheme!r}", hint="http or https")
    try:
        timeout = float(extra.get("timeout") or _TIMEOUT_SECONDS)
    except (TypeError, ValueError):
        timeout = 0.0
    if not 0 < timeout <= _LONGEST_SECONDS:  # rejects `nan` too
        raise UsageError(f"{name} has the time-out {extra['timeout']!r}", hint="give seconds, such as 30, up to a day")
    default = f":{connection.port or _PORT}"
    return ClusterConnection(
        url=",".join(f"{scheme}://{host[1]}{host[2] or default}" for host in hosts if host),
        token=connection.password or "",
        timeout_seconds=timeout,
        job_page=extra.get("job_page") or _JOB_PAGE,
        python=extra.get("python") or sys.executable,
        ca=extra.get("ca") or "",
    )


class PenstockHook(BaseHook):
    """One cluster; workers use `get_conn` and `run`, the event loop of the triggerer `aget_conn` and `arun`."""

    conn_name_attr = "penstock_conn_id"
    default_conn_name = "penstock_default"
    conn_type = "penstock"
    hook_name = "penstock"

    def __init__(self, penstock_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        """Prepare; the connection is looked up later."""
        super().__init__(**kwargs)
        self.penstock_conn_id = penstock_conn_id
        self._place: ClusterConnection | None = None

    @property
    def place(self) -> ClusterConnection:
        """Return the cluster; looks the connection up."""
        if self._place is None:
            self._place = place_of(self.get_connection(self.penstock_conn_id))
        return self._place

    async def aplace(self) -> ClusterConnection:
        """Return the cluster without blocking the event loop."""
        if self._place is None:
            self._place = place_of(await self.aget_connection(self.penstock_conn_id))
        return self._place

    def get_conn(self) -> RestClient:
        """Return a client of the cluster."""
        return self.place.client()

    async def aget_conn(self) -> RestClient:
        """Return a client; its methods block, so pass them to `arun`."""
        return (await self.aplace()).client()

    def run(self, ask: Callable[[RestClient], _T]) -> _T:
        """Return the result of `ask` on the client."""
        with self.get_conn() as client:
            return ask(client)

    async def arun(self, ask: Callable[[RestClient], _T]) -> _T:
        """Return the result of `ask` on the client, run in a separate thread."""
        client = await self.aget_conn()
        return await asyncio.to_thread(ask, client)

    def test_connection(self) -> tuple[bool, str]:
        """Request the cluster's overview, for the test button in Airflow's list of connections."""
        try:
            # the button tests a copy, under an id of Airflow that the user does not know
            place = place_of(self.get_connection(self.penstock_conn_id), "the connection")
            with place.client() as client:
                found = client.overview()
        except PenstockError as error:
            return False, str(error)
        slots = f"{found['slots-available']} of {found['slots-total']} slots free"
        return True, f"penstock {found['flink-version']}: {found['taskmanagers']} TaskManagers, {slots}"
