"""The control plane: jobs, their status, slots, checkpoints and recovery; never touches a record."""
