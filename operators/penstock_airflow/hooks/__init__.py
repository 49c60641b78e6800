"""The hook: a connection of type `penstock` as a client of the REST API."""
