"""The graphs of a job as values: stream graph (as written), job graph (chained), execution graph, deployments."""
