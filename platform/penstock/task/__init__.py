"""The data plane of one worker: subtasks with their mailboxes and chains, snapshots, uploads, restore, recovery of sinks."""
