"""The benchmarks of `penstock bench`: workloads, an external meter, and the check that rejects wrong answers."""
