"""Benchmarks, their workloads, and the servers of demo and tests. A checkout has this package, the wheel has not."""
