"""Operators: each one succeeds when a job has made a transition; none runs as long as a job."""
