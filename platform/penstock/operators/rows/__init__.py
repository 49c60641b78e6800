"""Operators on single rows, with columns or with Python functions; opened by the task."""
