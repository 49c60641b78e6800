"""What runs, as values: stream graph (as written) -> chained job graph (submitted) -> execution graph (subtasks) -> deployments."""
