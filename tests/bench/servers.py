"""The servers of benches whose job reads from Kafka, writes to Kafka, and has its state on MinIO."""

import contextlib
import tempfile
from pathlib import Path

from penstock_lab.servers import start_kafka, start_minio


@contextlib.contextmanager
def kafka_and_minio():
    """Start both in a temporary folder; yield (folder, Kafka, MinIO), which has the bucket `bench`."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        kafka, minio = start_kafka(folder / "kafka"), start_minio(folder / "minio")
        stack.callback(kafka.remove)
        stack.callback(minio.remove)
        minio.make_bucket("bench")
        yield folder, kafka, minio
