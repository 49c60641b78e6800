"""Backfill: computes a job's history as a batch and writes a savepoint from which the live job continues."""
