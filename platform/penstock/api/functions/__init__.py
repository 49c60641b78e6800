"""User functions in the graph: types, keys, declared states; used by the streams."""
