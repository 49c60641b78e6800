"""The configuration of a JobManager process, and its time-outs, retries and retention (`JobManagerLimits`).

Built by the command line and the embedded cluster; tests set shorter times.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from penstock.config.security import UNPROTECTED, Security
from penstock.config.settings import ClusterSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class JobManagerLimits:
    """Times and counts; immutable."""

    #: An HA store that does not answer for this long at the start is reported.
    quiet_ms: int = 3_000
    #: Interval between tries to start a recorded job, and their number.
    recover_retry_ms: int = 2_000
    recover_tries: int = 30
    #: How long a verdict on an upgrade may take to become durable before the caller gets an error.
    verdict_ms: int = 20_000
    #: Number of ended jobs whose last run is still shown in full.
    retained_ended_jobs: int = 50


DEFAULT_LIMITS = JobManagerLimits()


class JobManagerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of `run_jobmanager`."""

    #: Where leadership and job records are stored: a folder or `s3://bucket/prefix`.
    ha_uri: str
    settings: ClusterSettings = ClusterSettings()
    #: Certificates, tokens and secret of the cluster.
    security: Security = UNPROTECTED
    #: URL of the REST API, under which clients and other JobManagers reach this one; empty: it has none.
    rest_url: str = ""
