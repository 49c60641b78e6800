"""Compiled loops over rows: hashing, splitting, indexing, aggregating; everything that would otherwise be Python per row."""
