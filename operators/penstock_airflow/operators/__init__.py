"""Operators: each one succeeds when a job has made a transition, none lives as long as a job."""
