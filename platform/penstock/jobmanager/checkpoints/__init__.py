"""Deciders of a job's checkpoints over all its deployments; called by `master`."""
