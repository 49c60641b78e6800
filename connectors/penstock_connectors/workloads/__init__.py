"""Source and sink of the benchmarks: events by formula, and a sink that keeps only an exact checksum."""

from penstock_connectors.workloads.marks import Marks, read_marks
from penstock_connectors.workloads.sink import ChecksumSink
from penstock_connectors.workloads.source import WorkloadSource

__all__ = ["ChecksumSink", "Marks", "WorkloadSource", "read_marks"]
