"""The TaskManager: a supervisor that never runs user code, a warm template, and the slot workers forked from it."""
