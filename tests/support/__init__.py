"""Shared by all levels of the tests: waiting for a condition, depth of drawn examples."""
