"""The source operator, event time and watermarks; opened by the task."""
