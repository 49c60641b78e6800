"""State on the local disk; used by tables that evict keys."""
