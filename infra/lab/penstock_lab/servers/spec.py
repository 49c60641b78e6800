"""Protocols of a started server, for the demo, the tests and the command line.

A server is a local process (`kafka_local`, `minio_local`) or a container (`containers`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

Progress = Callable[[str], None]
"""Receives a plain line at the start of a long step and every few seconds while it runs."""


def silent(_line: str) -> None:
    """Drop progress lines."""


class Server(Protocol):
    """A server on the loopback interface; its port and data outlive `stop`, `kill` and `restart`."""

    @property
    def name(self) -> str:
        """The display name."""

    @property
    def endpoint(self) -> str:
        """The address for clients, `host:port`, the same over restarts."""

    @property
    def pid(self) -> int | None:
        """Process id while it is running."""

    def start(self) -> None:
        """Start and wait until it answers; raises an error with the end of its log otherwise."""

    def stop(self) -> None:
        """Shut it down orderly; idempotent."""

    def kill(self) -> None:
        """End it with SIGKILL, like a crash."""

    def restart(self) -> None:
        """Stop it if it is running, then start it with the same data and port."""

    def remove(self) -> None:
        """Stop it permanently and release resources outside its data folder (a container)."""


class KafkaServer(Server, Protocol):
    """A Kafka broker that is its own controller."""

    @property
    def bootstrap(self) -> str:
        """The value for `bootstrap.servers`."""


class MinioServer(Server, Protocol):
    """An S3 server."""

    @property
    def url(self) -> str:
        """The endpoint with its scheme."""

    @property
    def access_key(self) -> str:
        """Name of the account."""

    @property
    def secret_key(self) -> str:
        """Password of the account."""

    def make_bucket(self, bucket: str) -> None:
        """Create a bucket unless it exists."""
