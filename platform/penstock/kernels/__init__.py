"""Compiled loops over rows: hashing, splitting, indexing, aggregating.

Everything that would otherwise be Python per row.
"""
