"""Settings: what a user may tweak, as frozen values; components (clock, store, transport) are never settings."""
