"""The data plane of one worker: subtasks and their chains, snapshots, uploads, restore, recovery of sinks."""
