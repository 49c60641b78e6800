"""The source's side: splits, fetches, decoding; called through `kafka.source`."""
