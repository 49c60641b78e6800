"""Deciders of one (re)start: what is restored, where subtasks run, when to restart; called by `master`."""
