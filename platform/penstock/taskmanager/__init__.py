"""The TaskManager: a supervisor that never runs user code, a warm template, and workers forked from it."""
