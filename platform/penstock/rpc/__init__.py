"""Control messages between JobManager, TaskManagers and workers, and their transport."""
