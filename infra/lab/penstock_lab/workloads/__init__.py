"""Source and sink of the benchmarks: events by formula, and a sink that keeps only an exact checksum."""

from penstock_lab.workloads.marks import Marks, read_marks
from penstock_lab.workloads.sink import ChecksumSink
from penstock_lab.workloads.source import WorkloadSource

__all__ = ["ChecksumSink", "Marks", "WorkloadSource", "read_marks"]
