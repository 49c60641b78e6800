"""Consistent cuts: coordinator, alignment, manifests and their dense log, stores, retention."""
