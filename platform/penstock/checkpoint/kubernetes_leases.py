"""Leases as `Lease` objects of Kubernetes: compare-and-set by `resourceVersion`, the content in an annotation.

For `jobmanager.leader_election`; the process runs in a pod, whose service account may get, create and update leases.
"""

from __future__ import annotations

import http.client
import re
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from penstock.core.clock import Clock
from penstock.core.errors import StorageError, UsageError

_SCHEME = "kubernetes://"
_PLACE = re.compile(r"kubernetes://([a-z0-9]([-a-z0-9]*[a-z0-9])?)/([a-z0-9]([-a-z0-9]*[a-z0-9])?)")
_API = "/apis/coordination.k8s.io/v1/namespaces"
_CONTENT = "penstock/content"
_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
#: A leader repeats a request without an answer within the lifetime of its lease.
_TIMEOUT_S = 2.0


class KubernetesLeases:
    """A `checkpoint.store.LeaseStore`: the key `leader.json` is the object `NAME-leader`."""

    def __init__(self, place: str, environment: Mapping[str, str], clock: Clock) -> None:
        """Take `kubernetes://NAMESPACE/NAME`, and the variables that Kubernetes sets in a pod.

        Raises:
            UsageError: the place is not of this form, or this process does not run in a pod.
        """
        if not _PLACE.fullmatch(place):
            msg = f"leader_election is {place!r}"
            raise UsageError(msg, hint="use kubernetes://NAMESPACE/NAME, or leave it empty to elect in the HA root")
        self.uri = place
        namespace, self._name = place.removeprefix(_SCHEME).split("/")
        self._path = f"{_API}/{namespace}/leases"
        self._account = Path(environment.get("PENSTOCK_KUBERNETES_ACCOUNT", _ACCOUNT))
        self._clock = clock
        try:
            self._server = environment["KUBERNETES_SERVICE_HOST"], int(environment["KUBERNETES_SERVICE_PORT"])
            self._tls = ssl.create_default_context(cafile=str(self._account / "ca.crt"))
        except (KeyError, OSError, ValueError) as error:
            msg = f"cannot use {place}: {type(error).__name__}: {error}"
            raise UsageError(msg, hint="run the JobManager in a pod with a service account") from error

    def read_with_etag(self, key: str) -> tuple[bytes, str]:
        """Return the content and the version. Raises FileNotFoundError, StorageError."""
        status, found = self._ask("GET", f"{self._path}/{self._object(key)}")
        if status == http.client.NOT_FOUND:
            raise FileNotFoundError(f"{self.uri}/{key}")
        metadata = self._accepted(status, found)["metadata"]
        version = f"{metadata['uid']} {metadata['resourceVersion']}"
        return metadata.get("annotations", {}).get(_CONTENT, "").encode(), version

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create the object; return False if it exists. Raises StorageError."""
        return self._written(*self._ask("POST", self._path, self._lease(key, data)))

    def put_if_match(self, key: str, data: bytes, etag: str) -> bool:
        """Replace that version; return False if there is another or none. Raises StorageError."""
        uid, _, version = etag.partition(" ")
        # without the uid, the API server would create an object that has been deleted
        lease = self._lease(key, data, uid=uid, resourceVersion=version)
        return self._written(*self._ask("PUT", f"{self._path}/{self._object(key)}", lease))

    def _object(self, key: str) -> str:
        return f"{self._name}-{key.removesuffix('.json')}"

    def _lease(self, key: str, data: bytes, **metadata: str) -> dict[str, Any]:
        """Return the object; its `spec` is what `kubectl get leases` shows."""
        holder = msgspec.json.decode(data, type=dict[str, Any]).get("jobmanager_id", "")
        renewed = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC).isoformat(timespec="microseconds")
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._object(key), "annotations": {_CONTENT: data.decode()}, **metadata},
            "spec": {"holderIdentity": holder, "renewTime": renewed},
        }

    def _written(self, status: int, answer: dict[str, Any]) -> bool:
        if status == http.client.CONFLICT:
            return False
        self._accepted(status, answer)
        return True

    def _accepted(self, status: int, answer: dict[str, Any]) -> dict[str, Any]:
        if status in (http.client.OK, http.client.CREATED):
            return answer
        msg = f"{self.uri}: the API server answers {status}: {answer.get('message', '')}"
        raise StorageError(msg, hint="let the service account get, create and update leases.coordination.k8s.io")

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        host, port = self._server
        connection = http.client.HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=self._tls)
        try:
            token = (self._account / "token").read_text(encoding="ascii").strip()  # Kubernetes replaces it hourly
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            connection.request(method, path, None if body is None else msgspec.json.encode(body), headers)
            answer = connection.getresponse()
            return answer.status, msgspec.json.decode(answer.read(), type=dict[str, Any])
        except (OSError, http.client.HTTPException, msgspec.MsgspecError) as error:
            msg = f"{self.uri}: no answer of the API server {host}:{port}: {type(error).__name__}: {error}"
            raise StorageError(msg, hint="check that it runs; the request is repeated") from error
        finally:
            connection.close()
