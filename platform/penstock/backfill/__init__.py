"""Backfill: a job's history computed as a batch, ending in a savepoint from which the live job goes on."""
