"""The data plane between subtasks: partitioners, channels, flow control, gates, and the one connection per pair of workers."""
