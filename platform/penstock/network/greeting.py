"""The first message each way between two workers: who it is from, and the proof that it is a worker of the same job.

A worker's key comes from its TaskManager, made of the cluster's secret for one job (`rpc.proof.workers_key`). The
proof names sender and receiver, so that what one worker was shown is of no use towards another. Used by `connection`.
"""

from __future__ import annotations

import hashlib
import hmac

from penstock.network.frame import PROTOCOL_VERSION, Hello


class Greeter:
    """Makes and checks the greetings of one worker."""

    def __init__(self, worker_id: str, key: bytes = b"") -> None:
        """`key` is that of the workers of its job."""
        self._worker_id = worker_id
        self._key = key

    def hello(self, peer: str) -> Hello:
        """Return what to say to `peer`."""
        return Hello(self._worker_id, proof=self._proof(self._worker_id, peer))

    def refusal(self, hello: Hello) -> str:
        """Return what is wrong with a greeting; empty when it is welcome."""
        if hello.version != PROTOCOL_VERSION:
            return f"version {hello.version} of the data protocol, this worker speaks {PROTOCOL_VERSION}"
        if not hmac.compare_digest(hello.proof, self._proof(hello.worker_id, self._worker_id)):
            return "without proof of being a worker of this job"
        return ""

    def _proof(self, sender: str, receiver: str) -> bytes:
        names = b"".join(len(name := text.encode()).to_bytes(4) + name for text in (sender, receiver))
        return hmac.new(self._key, b"penstock hello\0" + names, hashlib.sha256).digest()
