"""Indexes of keys; used by state tables and by compaction."""
