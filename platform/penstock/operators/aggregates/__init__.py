"""Aggregating operators without windows, and the schemas that window operators use too; opened by the task."""
