"""Backfills of jobs that are drawn from a seed, and what they are compared with."""
