"""What runs, as values: stream graph (as written) -> job graph (chained, submitted) -> execution graph -> deployments."""
