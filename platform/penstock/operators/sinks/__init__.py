"""The sink operator and its uncommitted epochs; opened by the task."""
