"""TaskManagers and their slots, and queries to workers; called by drivers of jobs and by the dispatcher."""
