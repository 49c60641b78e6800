"""The benchmarks behind `penstock bench`: workloads, an outside meter, and the gate that lets no wrong answer count."""
