"""The settings that a user may change, as frozen values; components (clock, store, transport) are never settings."""
