"""How a JobManager process is told to run; built by the command line and the embedded cluster."""

from __future__ import annotations

import msgspec

from penstock.config.security import UNPROTECTED, Security
from penstock.config.settings import ClusterSettings


class JobManagerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything `run_jobmanager` needs."""

    #: Where leadership and job records live: a folder or `s3://bucket/prefix`.
    ha_uri: str
    settings: ClusterSettings = ClusterSettings()
    #: Certificates, tokens and secret of the cluster.
    security: Security = UNPROTECTED
    #: Stop with all jobs' ends: the embedded cluster's JobManager exits by itself.
    exit_when_idle: bool = False
    #: Folders put on the import path for connectors of the user's own.
    python_path: tuple[str, ...] = ()
