"""A chain of operators and what surrounds it in a worker; driven by `task.drive`."""
