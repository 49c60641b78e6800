"""Commands that start something: a job, a backfill, a cluster, a benchmark."""
