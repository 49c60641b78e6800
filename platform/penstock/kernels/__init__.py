"""Compiled loops over rows: hashing, splitting, indexing, aggregating."""
