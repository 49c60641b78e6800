"""Operators that look at single rows, with columns or with Python functions."""
