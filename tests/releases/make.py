"""Stores a savepoint of the present version: `python -m tests.releases.make tests/releases/0.1.tar.gz`.

For the version that is released, once; it lies in the repository from then on.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.support.waiting import wait_until

from penstock.client.handle import JobHandle
from penstock.client.local_cluster import LocalCluster, LocalClusterConfig
from penstock.client.rest_client import RestClient

JOB = Path(__file__).parent / "job.py"
#: The same on every machine, because savepoints say where they come from.
FOLDER = Path(tempfile.gettempdir()) / "penstock-release"
LIMIT_S = 60.0


def make(target: Path) -> None:
    """Stop the job in the middle of its input; `target` becomes an archive of the savepoint."""
    FOLDER.mkdir()
    config = LocalClusterConfig(taskmanagers=1, slots_per_taskmanager=2, directory=FOLDER / "cluster")
    with LocalCluster(config) as cluster, RestClient(cluster.rest_url) as rest:
        own = {"PENSTOCK_CLUSTER": cluster.rest_url, "RELEASES_RATE": "400", "RELEASES_OUT": str(FOLDER / "out")}
        with subprocess.Popen([sys.executable, str(JOB)], cwd=FOLDER, env={**os.environ, **own}) as submitter:
            wait_until(lambda: submitter.poll() is not None or rest.jobs(), "the job", seconds=LIMIT_S)
            (job,) = rest.jobs()
            cuts = lambda: rest.checkpoints(job["jid"])["counts"]["completed"]
            wait_until(lambda: cuts() >= 3, "checkpoints", seconds=LIMIT_S)
            savepoint = JobHandle(rest, job["jid"], job["name"]).stop(target=str(FOLDER / "savepoints"))
            submitter.wait(LIMIT_S)
    with tarfile.open(target, "w:gz") as archive:
        for path in sorted(Path(savepoint).rglob("*")):
            archive.add(path, path.relative_to(savepoint), recursive=False, filter=_plain)


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out who made the file, and when."""
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    make(Path(sys.argv[1]))
