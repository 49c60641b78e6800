"""The real Spark."""
