"""Savepoints of released versions: whether this one goes on from them."""
