"""A chain of operators and its services in a worker; driven by `task.drive`."""
