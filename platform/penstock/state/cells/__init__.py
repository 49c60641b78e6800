"""Accumulators of windows in memory; used by pane tables and their spilled parts."""
