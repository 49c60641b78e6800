"""Sensors: each one waits until a condition on a job holds."""
