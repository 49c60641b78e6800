"""Deciders of the autoscaler: how parallel a vertex should be, what a restart costs; called by `jobs.autoscaler`."""
