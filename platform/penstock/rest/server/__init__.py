"""The application, its guard, access rules and HTTP server; started by the JobManager's process."""
