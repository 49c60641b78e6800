"""Starts a server: as a container if a Docker engine answers, otherwise as a local process.

The demo and the tests call `start_kafka` and `start_minio`. `PENSTOCK_SERVERS` = `auto` (default), `local` or
`containers`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TypeVar

from penstock.core.errors import PenstockError, UsageError
from penstock_lab.servers import containers, provision
from penstock_lab.servers.kafka_local import LocalKafka, prepare_kafka
from penstock_lab.servers.minio_local import LocalMinio
from penstock_lab.servers.spec import KafkaServer, MinioServer, Progress, Server, silent

S = TypeVar("S", bound=Server)

MODES = ("auto", "local", "containers")
SERVERS = ("kafka", "minio")


def server_mode() -> str:
    """Return the mode of `PENSTOCK_SERVERS`."""
    mode = os.environ.get("PENSTOCK_SERVERS", "auto")
    if mode not in MODES:
        raise UsageError(f"PENSTOCK_SERVERS is {mode!r}", hint=f"one of {', '.join(MODES)}")
    return mode


def uses_containers() -> bool:
    """Return whether servers start as containers."""
    mode = server_mode()
    return mode == "containers" or (mode == "auto" and containers.engine_answers())


def prepare(progress: Progress, servers: Collection[str] = SERVERS) -> None:
    """Do the slow preparation once per machine: pull the images, or fetch Kafka and build MinIO."""
    if uses_containers():
        try:
            containers.fetch_images(progress, servers)
        except PenstockError as error:
            if server_mode() != "auto":
                raise
            progress(f"{error.message}; preparing local processes instead")
        else:
            return
    if "kafka" in servers:
        prepare_kafka(progress)
    if "minio" in servers:
        provision.ensure_minio(progress)


def start_kafka(
    data_dir: Path | str,
    *,
    progress: Progress = silent,
    settings: Mapping[str, str] | None = None,
    port: int | None = None,
) -> KafkaServer:
    """Start a broker with its data in `data_dir`; the caller stops it."""
    local: KafkaServer = LocalKafka(Path(data_dir), progress=progress, settings=settings, port=port)
    if uses_containers():
        container: KafkaServer = containers.ContainerKafka(settings=settings, port=port)
        return _start_container(container, local, progress)
    local.start()
    return local


def start_minio(data_dir: Path | str, *, progress: Progress = silent, port: int | None = None) -> MinioServer:
    """Start an S3 server with its data in `data_dir`; the caller stops it."""
    local: MinioServer = LocalMinio(Path(data_dir), progress=progress, port=port)
    if uses_containers():
        container: MinioServer = containers.ContainerMinio(port=port)
        return _start_container(container, local, progress)
    local.start()
    return local


def _start_container(container: S, local: S, progress: Progress) -> S:
    """Start the container; in mode `auto`, fall back to the local process if the image is missing, and report that."""
    try:
        container.start()
    except PenstockError as error:
        if server_mode() != "auto":
            raise
        progress(f"{error.message}; starting a local process instead")
        local.start()
        return local
    return container
