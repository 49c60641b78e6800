"""Windows, aggregates and joins in the graph; used by the streams."""
