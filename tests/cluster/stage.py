"""Where a run happens: the servers, a bucket, a folder, and names nobody else uses."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.waiting import patience

from penstock.api.environment import use_executor
from penstock.graph.executor import JobResult

#: Of a command that hangs.
CLI_LIMIT_S = 120


@dataclass
class Stage:
    """Servers and names of one test."""

    kafka: object
    minio: object
    bucket: str
    prefix: str
    folder: Path
    counter: list = field(default_factory=lambda: [0])

    @property
    def bootstrap(self):
        return self.kafka.bootstrap

    def fresh(self, what):
        """A name of its own within this stage."""
        self.counter[0] += 1
        return f"{self.prefix}{what}-{self.counter[0]}"

    def root(self, name):
        return f"s3://{self.bucket}/{name}"

    @property
    def environment(self):
        return s3_environment(self.minio)


def s3_environment(minio):
    """The environment in which a process reaches the S3 server."""
    return {
        "PENSTOCK_S3_ENDPOINT": minio.url,
        "PENSTOCK_S3_ACCESS_KEY": minio.access_key,
        "PENSTOCK_S3_SECRET_KEY": minio.secret_key,
    }


class _Capture:
    """An executor that keeps the graph instead of running it."""

    def __init__(self):
        self.graphs = []

    def execute(self, graph):
        self.graphs.append(graph)
        return JobResult(job_id="", name=graph.name, state="", duration_ms=0.0)

    submit = execute


def graph_of(job, folder):
    """The job graph a job file builds."""
    import runpy

    capture = _Capture()
    with use_executor(capture, {}):
        runpy.run_path(str(job.write(folder)), run_name="__main__")
    return capture.graphs[0]


@dataclass(frozen=True)
class Said:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def last(self):
        return self.out.strip().splitlines()[-1]

    @property
    def value(self):
        """The JSON document of the last line."""
        return json.loads(self.last)


def start_cli(*arguments, cwd, environment=None):
    """Start a `penstock` command and return its process."""
    return subprocess.Popen(
        [sys.executable, "-m", "penstock.cli.main", *map(str, arguments)],
        cwd=cwd, env={**os.environ, "NO_COLOR": "1", **(environment or {})}, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def cli(*arguments, cwd, environment=None, limit=CLI_LIMIT_S):
    """Run a `penstock` command to its end; hanging is a failure."""
    process = start_cli(*arguments, cwd=cwd, environment=environment)
    try:
        out, err = process.communicate(timeout=limit * patience())
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"penstock {arguments[0]} hangs after {limit} s:\n{out[-2000:]}\n{err[-2000:]}") from None
    return Said(process.returncode, out, err)
