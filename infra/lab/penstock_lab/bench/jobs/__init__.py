"""The jobs of the benchmarks, one module for each family. `bench.registry` imports them by name."""
