"""Checkpointing: coordinator, barrier alignment, manifests and their log, stores, retention."""
