"""Equality with the real Flink: the same questions over the same seeded input."""
