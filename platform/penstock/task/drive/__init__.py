"""Subtasks, their loops and the worker's runtime; started by the worker's process."""
