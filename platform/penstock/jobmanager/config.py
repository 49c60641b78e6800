"""The configuration of a JobManager process; built by the command line and the embedded cluster."""

from __future__ import annotations

import msgspec

from penstock.config.security import UNPROTECTED, Security
from penstock.config.settings import ClusterSettings


class JobManagerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of `run_jobmanager`."""

    #: Where leadership and job records are stored: a folder or `s3://bucket/prefix`.
    ha_uri: str
    settings: ClusterSettings = ClusterSettings()
    #: Certificates, tokens and secret of the cluster.
    security: Security = UNPROTECTED
    #: Exit when all jobs have ended, as the embedded cluster's JobManager does.
    exit_when_idle: bool = False
    #: Folders added to the import path for user connectors.
    python_path: tuple[str, ...] = ()
