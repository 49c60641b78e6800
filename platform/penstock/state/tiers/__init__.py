"""Tiers of state beyond memory: on the local disk, or in the object store; used by the tables."""
