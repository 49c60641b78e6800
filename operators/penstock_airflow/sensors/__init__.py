"""Sensors: each one waits until something is true of a job."""
