"""The servers as containers, for machines with a Docker engine.

Ports are fixed and published on the loopback interface, so that a restarted container keeps its address.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Collection, Mapping
from typing import Any

from penstock.core.clock import SystemClock
from penstock.core.errors import ConnectorError, PenstockError
from penstock_lab.servers import minio_local, provision
from penstock_lab.servers.kafka_local import READY_MARK, SETTINGS
from penstock_lab.servers.minio_local import ensure_bucket
from penstock_lab.servers.process import LOOPBACK, accepts, free_port
from penstock_lab.servers.spec import Progress

ENGINE_TIMEOUT_S = 2
PULL_TIMEOUT_S = 600
IMAGE_HINT = "pull it, set PENSTOCK_KAFKA_IMAGE or PENSTOCK_MINIO_IMAGE, or PENSTOCK_SERVERS=local"
START_LIMIT_MS = 120_000
POLL_MS = 100
CLIENT_PORT, CONTROLLER_PORT, BROKER_PORT, S3_PORT = 9092, 9093, 9094, 9000

# Settings for testcontainers with ports on the loopback interface: no reaper image is pulled (`remove` does its work),
# and a machine that is itself a container must not be treated as a sibling of these containers.
_ENGINE_SETTINGS = {
    "TESTCONTAINERS_RYUK_DISABLED": "true",
    "TESTCONTAINERS_CONNECTION_MODE": "docker_host",
    "TESTCONTAINERS_HOST_OVERRIDE": LOOPBACK,
}


def engine_answers() -> bool:
    """Return whether a Docker engine is available."""
    # without the Docker client, whose import takes half a second and which leaves sockets open if no engine answers
    scheme, _, address = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").partition("://")
    with contextlib.suppress(OSError, ValueError), socket.socket(_family(scheme), socket.SOCK_STREAM) as probe:
        probe.settimeout(ENGINE_TIMEOUT_S)
        host, _, port = address.rpartition(":")
        probe.connect(address if scheme == "unix" else (host, int(port.rstrip("/"))))
        probe.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
        return b" 200 " in probe.recv(64)
    return False


def fetch_images(progress: Progress, servers: Collection[str]) -> None:
    """Pull the missing images of these servers."""
    import docker

    engine = docker.from_env(timeout=PULL_TIMEOUT_S)
    try:
        images = {"kafka": kafka_image(), "minio": minio_image()}
        for image in (images[name] for name in servers):
            with contextlib.suppress(docker.errors.ImageNotFound):
                engine.images.get(image)
                continue
            progress(f"pulling {image}")
            engine.images.pull(image)
    except docker.errors.DockerException as error:
        raise PenstockError(f"the Docker engine answers but has no image: {error}", hint=IMAGE_HINT) from error
    finally:
        engine.close()


def kafka_image() -> str:
    """Return the broker's image."""
    return os.environ.get("PENSTOCK_KAFKA_IMAGE", f"apache/kafka:{provision.KAFKA_VERSION}")


def minio_image() -> str:
    """Return the S3 server's image."""
    return os.environ.get("PENSTOCK_MINIO_IMAGE", "minio/minio:RELEASE.2025-09-07T16-13-09Z")


def _family(scheme: str) -> socket.AddressFamily:
    return socket.AF_UNIX if scheme == "unix" else socket.AF_INET


class _Container:
    """Start, stop, kill and restart of one container with one published port, for both servers."""

    name: str

    def __init__(self, image: str, inner_port: int, port: int | None) -> None:
        for key, value in _ENGINE_SETTINGS.items():
            os.environ.setdefault(key, value)
        from testcontainers.core.container import DockerContainer

        self._image = image
        self._port = port or free_port()
        container: Any = DockerContainer(image)
        self._container = container.with_exposed_ports(inner_port)
        self._container.ports[inner_port] = (LOOPBACK, self._port)
        self._started = False
        self._clock = SystemClock()

    @property
    def endpoint(self) -> str:
        return f"{LOOPBACK}:{self._port}"

    @property
    def pid(self) -> int | None:
        if not self._started:
            return None
        wrapped = self._container.get_wrapped_container()
        wrapped.reload()
        return int(wrapped.attrs["State"]["Pid"]) or None

    def start(self) -> None:
        if self.pid is not None:
            return
        if self._started:
            self._container.get_wrapped_container().start()
        else:
            self._create()
        deadline = self._clock.monotonic_ms() + START_LIMIT_MS
        while not self._is_ready():
            if self.pid is None or self._clock.monotonic_ms() > deadline:
                tail = " | ".join(self._log().splitlines()[-3:])
                self.remove()
                raise ConnectorError(f"container {self._image} did not become ready: {tail}")
            self._clock.sleep_ms(POLL_MS)

    def stop(self) -> None:
        """Stop the container; it and its data remain for `restart` until `remove`."""
        if self._started:
            self._container.get_wrapped_container().stop(timeout=20)

    def kill(self) -> None:
        if self.pid is not None:
            self._container.get_wrapped_container().kill()

    def restart(self) -> None:
        self.stop()
        self.start()

    def remove(self) -> None:
        """Remove the container with its data."""
        if self._started:
            self._container.stop()
            self._started = False

    def _create(self) -> None:
        import docker

        try:
            self._container.start()
        except docker.errors.DockerException as error:
            raise PenstockError(
                f"the Docker engine answers but cannot start {self._image}: {error}",
                hint=IMAGE_HINT,
            ) from error
        self._started = True

    def _log(self) -> str:
        return str(self._container.get_wrapped_container().logs().decode(errors="replace"))

    def _is_ready(self) -> bool:
        return accepts(self._port)


class ContainerKafka(_Container):
    """A `KafkaServer` in a container."""

    name = "Kafka"

    def __init__(self, *, port: int | None = None, settings: Mapping[str, str] | None = None) -> None:
        """Prepare the container; `settings` override the broker's."""
        super().__init__(kafka_image(), CLIENT_PORT, port)
        own = {
            "listeners": f"CLIENT://:{CLIENT_PORT},CONTROLLER://localhost:{CONTROLLER_PORT},BROKER://localhost:{BROKER_PORT}",
            "advertised.listeners": f"CLIENT://{self.endpoint},BROKER://localhost:{BROKER_PORT}",
            "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT,BROKER:PLAINTEXT",
            # the broker reaches its own transaction coordinator here; the published port exists only outside
            "inter.broker.listener.name": "BROKER",
            "controller.quorum.voters": f"1@localhost:{CONTROLLER_PORT}",
        }
        for key, value in {**SETTINGS, **own, **(settings or {})}.items():
            self._container.with_env("KAFKA_" + key.replace(".", "_").upper(), value)

    @property
    def bootstrap(self) -> str:
        return self.endpoint

    def _is_ready(self) -> bool:
        return READY_MARK in self._log() and accepts(self._port)


class ContainerMinio(_Container):
    """A `MinioServer` in a container."""

    name = "MinIO"
    access_key = minio_local.ACCESS_KEY
    secret_key = minio_local.SECRET_KEY

    def __init__(self, *, port: int | None = None) -> None:
        """Prepare the container."""
        super().__init__(minio_image(), S3_PORT, port)
        self._container.with_env("MINIO_ROOT_USER", self.access_key).with_env("MINIO_ROOT_PASSWORD", self.secret_key)
        self._container.with_command("server /data")

    @property
    def url(self) -> str:
        return f"http://{self.endpoint}"

    def make_bucket(self, bucket: str) -> None:
        ensure_bucket(self, bucket)

    def _is_ready(self) -> bool:
        return minio_local.is_healthy(self._port)
