"""What runs, as values: stream graph (as written) -> job graph (chained) -> execution graph -> deployments."""
