"""The interface for writing jobs: environment, streams, windows, aggregates; also exported by `penstock`."""
