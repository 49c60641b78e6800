"""The durable form of keyed state: segments, frozen rows, compaction; used by all state tables."""
