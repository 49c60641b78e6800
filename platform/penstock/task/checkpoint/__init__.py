"""A subtask's part of checkpoints: barriers, snapshots, uploads, restore; called by `task.drive`."""
