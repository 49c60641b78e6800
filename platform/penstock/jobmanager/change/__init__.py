"""Deciders of a rescale and an upgrade of a running job; called by `master`."""
