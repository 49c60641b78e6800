"""The source operator, event time and watermarks."""
