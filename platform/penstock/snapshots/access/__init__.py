"""Finding, reading, comparing and verifying snapshots; called by the CLI and `ps.snapshots`."""
