"""Join operators; opened by the task."""
