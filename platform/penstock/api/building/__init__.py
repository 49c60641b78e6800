"""Conversion of method calls to nodes of the graph; used by all of `ps.*`."""
