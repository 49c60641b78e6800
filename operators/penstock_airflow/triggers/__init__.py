"""Triggers: the waiting of deferred tasks, and events of jobs for asset watchers."""
