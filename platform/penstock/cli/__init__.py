"""The `penstock` command: typer commands over the client, the demo, and the entry points of the processes."""
