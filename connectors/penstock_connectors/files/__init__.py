"""Local files as bounded sources and as an exactly-once sink."""

from penstock_connectors.files.sink import FileSink, FileSinkFactory
from penstock_connectors.files.source import FileSource, FileSourceFactory

__all__ = ["FileSink", "FileSinkFactory", "FileSource", "FileSourceFactory"]
