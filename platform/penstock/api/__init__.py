"""What users write against: environment, streams, windows, aggregates; all of it is also found in `penstock`."""
