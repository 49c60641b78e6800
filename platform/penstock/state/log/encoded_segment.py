"""`EncodedSegment`: a segment before its upload, and its conversion to the form in the manifest.

Made by the segment writer; passed on by frozen states, compaction and the savepoint writer, in any thread.
"""

from __future__ import annotations

import msgspec

from penstock.core.snapshot import FileRef, Segment


class EncodedSegment(msgspec.Struct, frozen=True, kw_only=True):
    """A Parquet file in memory that is ready for upload; `position` is its place in the log."""

    position: int
    data: bytes
    rows: int
    hash_min: int
    hash_max: int
    namespace_min: int
    namespace_max: int
    tier: int = 0
    #: Length and checksum of the file's last bytes, from the end of the last row group.
    footer_length: int = 0
    footer_checksum: str = ""

    def with_data(self, data: bytes) -> EncodedSegment:
        """Return a copy with other bytes."""
        return msgspec.structs.replace(self, data=data)


def segment_of(encoded: EncodedSegment, file: FileRef, writer: str) -> Segment:
    """Return the manifest entry of an encoded segment that is stored in `file`."""
    return Segment(
        file=file,
        position=encoded.position,
        writer=writer,
        rows=encoded.rows,
        hash_min=encoded.hash_min,
        hash_max=encoded.hash_max,
        namespace_min=encoded.namespace_min,
        namespace_max=encoded.namespace_max,
        tier=encoded.tier,
        footer_length=encoded.footer_length,
        footer_checksum=encoded.footer_checksum,
    )
