"""Operators that aggregate without windows, and the schemas that windows share with them."""
