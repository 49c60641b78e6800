"""Operators of process functions, and the binding of their states to state tables; opened by the task."""
