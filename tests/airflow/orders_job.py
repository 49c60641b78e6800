"""The main job for Airflow to drive: orders from a real Kafka, totals to Kafka exactly once, checkpoints on S3."""

import contextlib
import secrets
from dataclasses import dataclass

from tests.cluster.job_file import Job
from tests.cluster.orders import Feed, Orders, create_topics, read_windows, verdict

IMPORTS = "import os\nfrom pathlib import Path\n\nimport polars as pl\n\nimport penstock as ps"
#: Orders for some minutes, a window of event time in about two seconds; the rest quickly when it is to end.
EVENTS, STEP_MS, RATE, LAST_RATE = 40_000, 10.0, 500, 5_000


@dataclass(frozen=True)
class Version(Job):
    """The main job with another step in front of its sink; `OUTPUT` in the environment replaces its output topic."""

    step: str = ""

    def text(self):
        text = Job.text(self).replace("import penstock as ps", IMPORTS)
        text = text.replace(f"topic={self.sink!r}", f"topic=os.environ.get('OUTPUT', {self.sink!r})")
        return text.replace(".sink_to(", f".{self.step}\n       .sink_to(") if self.step else text


class OrdersJob:
    """Topics, a feed and the job's file; jobs and topics have names of their own where none is given."""

    def __init__(self, servers, folder, name=""):
        self.name = name or f"orders-{secrets.token_hex(3)}"
        self.bootstrap, self.folder = servers.kafka.bootstrap, folder
        self.orders = Orders(secrets.randbelow(1_000), EVENTS, step_ms=STEP_MS)
        self.source, self.sink = f"{self.name}-in", f"{self.name}-out"
        self.root = f"s3://{servers.bucket}/{self.name}/checkpoints"
        self.savepoints = f"s3://{servers.bucket}/{self.name}/savepoints"
        create_topics(self.bootstrap, **{self.source: self.orders.partitions, self.sink: 2})
        self.feed = Feed(self.bootstrap, self.source, self.orders, RATE)

    def write(self, what="v1", **changes):
        """Write the file of a version and return its path."""
        given = {"parallelism": 1, "stops": self.orders.stops(self.source), **changes}
        job = Version(self.name, self.bootstrap, self.source, self.sink, self.root, **given)
        path = self.folder / f"{self.name}-{what}.py"
        path.write_text(job.text())
        return path

    def more_topics(self, **topics):
        create_topics(self.bootstrap, **topics)

    def judged(self):
        """The output as a read-committed reader sees it, compared with what is right."""
        self.feed.rate = LAST_RATE
        self.feed.join(60)
        return lambda: verdict(self.orders, read_windows(self.bootstrap, self.sink))


@contextlib.contextmanager
def fed(servers, folder, name=""):
    job = OrdersJob(servers, folder, name)
    job.feed.start()
    try:
        yield job
    finally:
        job.feed.end()
