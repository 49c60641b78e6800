"""The sink operator and its uncommitted epochs."""
