"""Data plane between subtasks: partitioners, channels, flow control, gates, one connection per pair of workers."""
