"""penstock: exactly-once stream processing in Python, on Arrow data with open state."""

__version__ = "0.1.0"
