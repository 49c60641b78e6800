"""Window operators; opened by the task."""
