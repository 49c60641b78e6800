"""State in the object store, fetched by ranges; used by tables of the `remote` backend."""
