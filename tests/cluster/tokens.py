"""A folder of tokens that protects a cluster, one for each role."""

import contextlib
import secrets

from penstock.client.access import ClientAccess
from penstock.client.local_cluster import LocalCluster, LocalClusterConfig
from penstock.client.rest_client import RestClient
from penstock.config.security import ROLES, token_digest
from penstock.core.secrets import Secret


class Tokens:
    """`folder` is what the cluster gets; `of` has the tokens by role."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        self.of = {role: secrets.token_hex(32) for role in ROLES}
        lines = [f"{role} {role}-of-the-test {token_digest(token)}" for role, token in self.of.items()]
        (folder / "tokens").write_text("\n".join(lines))
        (folder / "tokens").chmod(0o644)
        (folder / "admin.token").write_text(self.of["admin"])

    @property
    def environment(self):
        """For the processes of the cluster."""
        return {"PENSTOCK_SECURITY": str(self.folder)}

    def client(self, url, role="admin"):
        return RestClient(url, access=ClientAccess(token=Secret(self.of[role])))


@contextlib.contextmanager
def protected_cluster(folder, slots):
    """A cluster of one TaskManager that asks for tokens, and its tokens."""
    tokens = Tokens(folder / "security")
    config = LocalClusterConfig(
        taskmanagers=1, slots_per_taskmanager=slots, directory=folder / "cluster", environment=tokens.environment
    )
    with LocalCluster(config) as cluster:
        yield cluster, tokens
